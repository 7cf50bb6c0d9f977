import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torchvision.datasets import CIFAR10, CIFAR100, utils

from shoal.core.errors import DataError
from shoal.core.seal import unsealed
from shoal.data.sets import built_in as sets
from shoal.data.sets import files
from shoal.data.sets.prepare import prepare, prepared_sets, resolve, store_folder
from shoal.data.sets.prepared import open_prepared
from shoal.data.sets.sources import find
from tests.data.official_formats import (
    put,
    sha256,
    write_ag_news,
    write_cifar10_binary,
    write_cifar_python,
    write_idx_set,
)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def fail(*_):
        raise OSError("no route to host")

    monkeypatch.setattr(files, "download_torchvision", fail)
    monkeypatch.setattr(files, "download_ag_news", fail)


@pytest.fixture
def mirror(tmp_path):
    folder = tmp_path / "mirror"
    folder.mkdir()
    return folder


@pytest.fixture
def publish(monkeypatch):
    """Have these files be the published ones."""

    def change(checksums):
        for path, digest in checksums.items():
            monkeypatch.setitem(files.DIGESTS, path, digest)

    return change


@pytest.fixture
def store(tmp_path):
    return tmp_path / "store"


def test_digits(digits):
    from sklearn.datasets import load_digits

    assert (digits.train_x.shape, digits.test_x.shape) == ((1437, 1, 8, 8), (360, 1, 8, 8))
    assert digits.train_x.dtype == np.uint8
    assert digits.train_x.max() == 255
    whole = np.sort(np.concatenate([digits.train_x, digits.test_x]).reshape(-1, 64), axis=0)
    assert np.array_equal(whole, np.sort(np.round(load_digits().data * 255 / 16).astype(np.uint8), axis=0))
    train, test = np.bincount(digits.train_y), np.bincount(digits.test_y)
    assert np.abs(train / 1437 - test / 360).max() < 0.003
    assert digits.spec.classes == 10


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST/raw"), ("fashion-mnist", "FashionMNIST/raw")])
def test_idx_sets(name, folder, mirror, store, publish):
    arrays, checksums = write_idx_set(mirror, folder)
    publish(checksums)
    prepared = prepare(name, store, mirror=mirror)
    assert np.array_equal(prepared.train_x[:, 0], arrays["train-images-idx3-ubyte"])
    assert np.array_equal(prepared.test_y, arrays["t10k-labels-idx1-ubyte"])
    assert prepared.manifest.shape == (1, 28, 28)
    assert len(prepared.manifest.class_names) == prepared.manifest.classes == 10
    assert open_prepared(store_folder(store, name), verify=True).manifest == prepared.manifest


def test_a_manifest_with_a_name_that_cannot_be_printed_is_refused(tmp_path):
    prepare("digits", tmp_path)
    path = store_folder(tmp_path, "digits") / "manifest.json"
    manifest = unsealed(json.loads(path.read_text()))
    path.write_text(json.dumps({**manifest, "name": "\x00", "train": 3}))
    with pytest.raises(DataError, match=r"manifest\.json is not a data manifest \(a text has letters") as error:
        open_prepared(path.parent)
    assert str(error.value).isprintable()


@pytest.mark.parametrize("packing", ["", ".xz", ".gz"])
def test_cifar10_binary(packing, mirror, store, publish):
    arrays, checksums = write_cifar10_binary(mirror, packing)
    publish(checksums)
    prepared = prepare("cifar10", store, mirror=mirror)
    assert prepared.train_x.shape == (20, 3, 32, 32)
    assert np.array_equal(prepared.train_x[4:8], arrays["data_batch_2"][0])
    assert np.array_equal(prepared.test_y, arrays["test_batch"][1])
    assert prepared.manifest.class_names[1] == "automobile"


def test_both_versions_of_cifar10_give_the_same_arrays(mirror, store, tmp_path, publish, monkeypatch):
    names = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]
    _, listed = write_cifar_python(tmp_path / "py", "cifar-10-batches-py", names, "labels")
    publish_python(monkeypatch, CIFAR10, listed)
    _, binary = write_cifar10_binary(mirror)
    publish(binary)
    one = prepare("cifar10", store, mirror=mirror)
    other = prepare("cifar10", tmp_path / "other", mirror=tmp_path / "py")
    assert one.manifest.digest == other.manifest.digest


def publish_python(monkeypatch, kind, listed):
    """Have torchvision expect these files, and write its list of classes."""
    monkeypatch.setattr(kind, "train_list", listed[:-1])
    monkeypatch.setattr(kind, "test_list", listed[-1:])
    monkeypatch.setattr(kind, "_load_meta", lambda self: setattr(self, "classes", [f"class {k}" for k in range(10)]))


def test_cifar100(mirror, store, monkeypatch):
    arrays, listed = write_cifar_python(mirror, "cifar-100-python", ["train", "test"], "fine_labels")
    publish_python(monkeypatch, CIFAR100, listed)
    prepared = prepare("cifar100", store, mirror=mirror)
    assert np.array_equal(prepared.train_x, arrays["train"][0])
    assert prepared.test_y.tolist() == arrays["test"][1].tolist()
    path = mirror / "cifar-100-python" / "test"
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(DataError, match=r"'CIFAR100' were not found: tried .*corrupted.*SHOAL_DATA_MIRROR"):
        prepare("cifar100", store, mirror=mirror, force=True)


@pytest.mark.parametrize("packing", ["", ".gz"])
def test_ag_news(packing, mirror, store, publish):
    checksums = write_ag_news(mirror, packing=packing)
    publish(checksums)
    prepared = prepare("ag-news", store, mirror=mirror, options={"length": 12})
    assert prepared.manifest.name == "ag-news-length12"
    assert prepared.train_x.shape == (12, 12)
    assert prepared.train_x.dtype == np.int32
    assert prepared.manifest.subset == ""
    vocabulary = prepared.manifest.extra["vocabulary"]
    assert vocabulary[:3] == ["<pad>", "<unk>", "<eos>"]
    # Words of the test part only are unknown.
    assert "zebra" not in vocabulary
    assert 1 in prepared.test_x[0]
    assert prepared.spec.vocabulary == len(vocabulary)
    assert prepared.train_x.max() == len(vocabulary) - 1
    assert prepared.train_y[:4].tolist() == [0, 1, 2, 3]


def test_subset_of_ag_news_is_told(mirror, store, publish):
    checksums = write_ag_news(mirror, train="train_subset.csv.gz")
    publish(checksums)
    prepared = prepare("ag-news", store, mirror=mirror)
    assert prepared.manifest.subset == "12 of 120,000 training rows"


@pytest.mark.parametrize("name", ["gaussian", "subspace"])
def test_synthetic(name, store):
    prepared = prepare(name, store, options={"clusters": 3, "samples": 20, "test": 5, "seed": 1})
    assert prepared.manifest.name == f"{name}-clusters3-samples20-seed1-test5"
    assert prepared.train_x.shape == (60, 32)
    assert prepared.test_x.shape == (15, 32)
    again = prepare(prepared.manifest.name, store, force=True)
    assert again.manifest == prepared.manifest
    assert prepare(name, store, options={"clusters": 3, "test": 0}).manifest.test == 0


def test_preparing_again_only_opens(digits, monkeypatch):
    store = digits.folder.parents[1]
    monkeypatch.setitem(sets.SETS, "digits", replace(sets.SETS["digits"], load=lambda _: pytest.fail("loaded")))
    assert prepare("digits", store).manifest == digits.manifest


def test_wrong_file_is_refused_with_both_digests(mirror, store, publish):
    _, checksums = write_idx_set(mirror, "MNIST/raw")
    publish(checksums)
    path = "MNIST/raw/t10k-labels-idx1-ubyte.gz"
    found = sha256((mirror / path).read_bytes())
    publish({path: "0" * 64})
    with pytest.raises(DataError) as error:
        prepare("mnist", store, mirror=mirror)
    assert all(part in str(error.value) for part in (path, found, "0" * 64))
    assert not store_folder(store, "mnist").exists()


def test_published_checksums_are_md5_and_are_used(mirror, store):
    write_idx_set(mirror, "MNIST/raw")
    with pytest.raises(DataError, match=r"md5 .* expected f68b3c2dcbeaaa9fbdd348bbdeb94873"):
        prepare("mnist", store, mirror=mirror)


def test_truncated_files_are_refused_by_name(mirror, store, publish):
    _, checksums = write_cifar10_binary(mirror)
    publish(checksums)
    packed = mirror / "cifar-10-batches-bin/data_batch_3.bin.xz"
    packed.write_bytes(packed.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"data_batch_3\.bin\.xz is truncated"):
        prepare("cifar10", store, mirror=mirror)


def test_a_published_file_that_is_not_packed(mirror, store, publish):
    _, checksums = write_idx_set(mirror, "MNIST/raw")
    path = "MNIST/raw/train-images-idx3-ubyte.gz"
    publish({**checksums, path: put(mirror, path, b"no gz")})
    with pytest.raises(DataError, match="train-images"):
        prepare("mnist", store, mirror=mirror)


def test_images_are_shrunk_as_asked(mirror, store, publish):
    _, checksums = write_idx_set(mirror, "MNIST/raw")
    publish(checksums)
    found = prepare("mnist-shrink2", store, mirror=mirror)
    original = prepare("mnist", store, mirror=mirror)
    for before, after in zip(original.train_x, found.train_x, strict=True):
        np.testing.assert_array_equal(before[0].reshape(14, 2, 14, 2).mean((1, 3)).round(), after[0])
    np.testing.assert_array_equal(found.train_y, original.train_y)
    with pytest.raises(DataError, match="does not divide images of 28 x 28"):
        prepare("mnist-shrink3", store, mirror=mirror)


def test_failed_download_says_what_was_tried(mirror, store, publish):
    _, checksums = write_idx_set(mirror, "MNIST/raw")
    publish(checksums)
    (mirror / "MNIST/raw/t10k-images-idx3-ubyte.gz").unlink()
    with pytest.raises(DataError) as error:
        prepare("mnist", store, mirror=mirror)
    for part in ("'mnist'", "t10k-images-idx3-ubyte.gz", str(mirror), "no route to host", "SHOAL_DATA_MIRROR"):
        assert part in str(error.value)


def test_download_lands_in_the_store(mirror, store, monkeypatch, publish):
    _, checksums = write_idx_set(mirror, "MNIST/raw")
    publish(checksums)
    mnist = sets.SETS["mnist"]
    fetched = []

    def download(root):
        fetched.append(root)
        write_idx_set(root, "MNIST/raw")

    def load(request):
        found = find("mnist", (files.MNIST,), download, mirror=None, raw=request.raw)
        assert found.root == store / "raw"
        return mnist.load(request)

    monkeypatch.setitem(sets.SETS, "mnist", replace(mnist, load=load))
    for _ in range(2):
        assert prepare("mnist", store, force=True).manifest.train == 20
    assert fetched == [store / "raw"]


def test_download_of_ag_news_is_verified(tmp_path, monkeypatch):
    monkeypatch.undo()
    page = "a page that is no CSV file"
    monkeypatch.setattr(utils, "_get_redirect_url", lambda url, **_: url)
    monkeypatch.setattr(utils, "_urlretrieve", lambda url, path: Path(path).write_text(page))
    with pytest.raises(RuntimeError, match="corrupted"):
        files.download_ag_news(tmp_path)


def test_unknown_names(digits, store):
    with pytest.raises(DataError, match="did you mean 'fashion-mnist'"):
        prepare("fashon-mnist", store)
    with pytest.raises(DataError, match=r"Built in: digits, mnist.*subspace"):
        prepare("nothing-like-it", store)
    with pytest.raises(DataError, match=r"there is no data set '\.\./x'"):
        prepare("../x", store)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gaussian", {"cluster": 3}, "no option 'cluster'; its options: clusters"),
        ("cifar10", {"seed": 3}, "its options: none"),
        ("gaussian", {"clusters": 0}, "whole number >= 1"),
        ("gaussian", {"clusters": 2.5}, "whole number"),
        ("gaussian", {"seed": True}, "whole number"),
        ("gaussian-colour3", None, "no option 'colour'"),
    ],
)
def test_wrong_options(name, options, message, store):
    with pytest.raises(DataError, match=message):
        prepare(name, store, options=options)


def test_names_spell_options():
    assert resolve("gaussian", {"clusters": 4})[2] == "gaussian"
    assert resolve("fashion-mnist")[0].name == "fashion-mnist"
    data_set, options, name = resolve("ag-news-length32", {"vocabulary": 500})
    assert (data_set.name, name) == ("ag-news", "ag-news-vocabulary500-length32")
    assert options == {"vocabulary": 500, "frequency": 2, "length": 32}


def test_half_a_set_in_the_store_is_passed_over(digits):
    store = digits.folder.parents[1]
    (store / "prepared" / "broken").mkdir(exist_ok=True)
    (store / "prepared" / "broken" / "manifest.json").write_text("{")
    assert [m.name for m in prepared_sets(store)] == ["digits"]


@pytest.mark.slow
def test_real_sets(real_mirror, store):
    expected = {
        "mnist": ((60000, 1, 28, 28), 10000, 10, ""),
        "fashion-mnist": ((60000, 1, 28, 28), 10000, 10, ""),
        "cifar10": ((50000, 3, 32, 32), 10000, 10, ""),
        "ag-news": ((31510, 64), 7600, 4, "31,510 of 120,000 training rows"),
    }
    for name, (shape, test, classes, subset) in expected.items():
        prepared = prepare(name, store, mirror=real_mirror)
        m = prepared.manifest
        assert (prepared.train_x.shape, m.test, m.classes, m.subset) == (shape, test, classes, subset)
        assert np.bincount(prepared.test_y).sum() == test
        assert set(np.unique(prepared.train_y)) == set(range(classes))
    cifar = prepare("cifar10", store)
    assert np.bincount(cifar.train_y).tolist() == [5000] * 10
    mean = np.asarray(cifar.train_x).mean(axis=(0, 2, 3)) / 255
    assert np.allclose(mean, (0.4914, 0.4822, 0.4465), atol=1e-4)
    assert prepare("ag-news", store).spec.vocabulary == 10_000
