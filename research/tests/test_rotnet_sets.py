"""RotNet representations as a data set: named, trained once, the same every time."""

import numpy as np
import pytest
import torch

from shoal.core.errors import DataError
from shoal.data.sets.prepare import store_folder
from shoal.data.sets.prepared import Manifest, write_prepared
from shoal_research.uifca import rotnet_sets
from shoal_research.uifca.rotnet_sets import parse, prepare_rotnet, rotate


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rotnet-digits", ("digits", {"images": 10_000, "epochs": 3})),
        ("rotnet-mnist-shrink2-epochs5", ("mnist-shrink2", {"images": 10_000, "epochs": 5})),
    ],
)
def test_names_and_options(name, expected):
    assert parse(name) == expected


def test_representations_are_standardised_kept_and_the_same_when_made_again(tmp_path):
    first = prepare_rotnet("rotnet-digits-images300-epochs1", tmp_path)
    assert first.spec.kind == "vector"
    assert first.train_x.shape == (1437, 256)
    assert first.test_x.shape == (360, 256)
    np.testing.assert_allclose(first.train_x.mean(0), 0, atol=1e-4)
    assert ((np.abs(first.train_x.std(0) - 1) < 1e-3) | (first.train_x.std(0) == 0)).all()
    assert "RotNet on digits" in first.manifest.source
    stamp = (store_folder(tmp_path, "rotnet-digits-images300-epochs1") / "manifest.json").stat().st_mtime_ns
    again = prepare_rotnet("rotnet-digits-images300-epochs1", tmp_path)
    assert (store_folder(tmp_path, again.spec.name) / "manifest.json").stat().st_mtime_ns == stamp
    elsewhere = prepare_rotnet("rotnet-digits-images300-epochs1", tmp_path / "elsewhere")
    assert elsewhere.manifest.digest == first.manifest.digest


def test_what_cannot_be_represented_is_named(tmp_path):
    with pytest.raises(DataError, match="'gaussian' is vector data"):
        prepare_rotnet("rotnet-gaussian", tmp_path)
    with pytest.raises(DataError, match="'epochs' of 'rotnet-digits-epochs0' is 0"):
        prepare_rotnet("rotnet-digits-epochs0", tmp_path)
    with pytest.raises(DataError, match="no data set 'nothing'"):
        prepare_rotnet("rotnet-nothing", tmp_path)


def own_images(store, shape, name="mine"):
    x = np.random.default_rng(0).integers(0, 256, (24, *shape), dtype=np.uint8)
    manifest = Manifest(name, "image", shape, 2, 24, 0, source="a test", licence="none")
    clients = np.arange(24) // 8
    write_prepared(store_folder(store, name), manifest, {"train_x": x, "train_y": clients % 2}, {"client": clients})
    return clients


def test_natural_clients_stay(tmp_path):
    clients = own_images(tmp_path, (1, 8, 8))
    made = prepare_rotnet("rotnet-mine-epochs2", tmp_path)
    assert made.columns() == ["client"]
    np.testing.assert_array_equal(made.column("client"), clients)


def test_images_that_are_not_square_are_refused(tmp_path):
    own_images(tmp_path, (1, 8, 10))
    with pytest.raises(DataError, match="'mine' are 8 x 10"):
        prepare_rotnet("rotnet-mine", tmp_path)


def test_a_network_for_turned_images_learns_from_upright_ones(tmp_path, monkeypatch):
    trained = []
    train = rotnet_sets.train_rotnet

    def remember(source, *rest):
        trained.append(source.spec.name)
        return train(source, *rest)

    monkeypatch.setattr(rotnet_sets, "train_rotnet", remember)
    own_images(tmp_path, (1, 28, 28), "mnist")
    own_images(tmp_path, (1, 28, 28), "mnist-rotations4")
    made = prepare_rotnet("rotnet-mnist-rotations4-images16-epochs1", tmp_path)
    assert trained == ["mnist"]
    assert made.manifest.source.startswith("RotNet on mnist-rotations4")


def test_quarter_turns():
    x = torch.arange(2 * 9.0).view(2, 1, 3, 3)
    out = rotate(x, torch.tensor([0, 3]))
    assert torch.equal(out[0], x[0])
    assert torch.equal(out[1], torch.rot90(x[1], 3, (1, 2)))
