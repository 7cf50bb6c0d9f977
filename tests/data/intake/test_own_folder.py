import numpy as np
import pytest
from PIL import Image

from shoal.core.errors import DataError
from shoal.data.partition.make import make_partition
from shoal.data.partition.schemes import ByColumn
from shoal.data.sets.intake_notes import Intake, left_out_before
from shoal.data.sets.prepare import own_sets, prepare
from tests.added_sets import add_set


def picture(path, size=(6, 6), mode="L", value=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = size if mode == "L" else (*size, 3)
    seed = sum(map(ord, path.stem))
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8) if value is None else value
    Image.fromarray(pixels).save(path)
    return pixels


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "photos"
    for client in ("clinic b", "clinic a"):
        for i in range(4):
            picture(root / client / f"{client[-1]}{i}.png")
    return root


@pytest.fixture
def store(tmp_path):
    return tmp_path / "store"


def test_clients_and_images(folder, store):
    added = picture(folder / "clinic b" / "deeper" / "z.bmp")
    (folder / "clinic a" / "notes.txt").write_text("not an image")
    (folder / "clinic a" / ".hidden.png").write_text("not shown")
    prepared = add_set(folder, "photos", store)
    assert prepared.train_x.shape == (9, 1, 6, 6)
    assert prepared.train_y is None
    assert prepared.manifest.extra["clients"] == ["clinic a", "clinic b"]
    assert prepared.column("client").tolist() == [0] * 4 + [1] * 5
    assert np.array_equal(prepared.train_x[-1, 0], added)
    partition = make_partition(ByColumn(), prepared)
    assert partition.client_names == ("clinic a", "clinic b")
    assert partition.samples_of(1).tolist() == [4, 5, 6, 7, 8]
    assert prepare("photos", store).manifest == prepared.manifest
    assert [m.name for m in own_sets(store)] == ["photos"]
    with pytest.raises(DataError, match=r"did you mean 'photos'\?.*your own: photos"):
        prepare("photo", store)
    with pytest.raises(DataError, match=r"no options"):
        prepare("photos", store, options={"seed": 1})


def test_one_coloured_image_makes_all_of_them_coloured(folder, store):
    colour = picture(folder / "clinic a" / "c.png", mode="RGB")
    prepared = add_set(folder, "photos", store)
    assert prepared.train_x.shape == (9, 3, 6, 6)
    grey, last = prepared.train_x[0], prepared.train_x[4]
    assert np.array_equal(grey[0], grey[2])
    assert np.array_equal(last, colour.transpose(2, 0, 1))


def test_all_bad_images_are_listed_with_a_reason(folder, store):
    whole = folder / "clinic a" / "big.jpg"
    picture(whole, (64, 64))
    (folder / "clinic a" / "cut.jpg").write_bytes(whole.read_bytes()[:300])
    whole.unlink()
    (folder / "clinic b" / "empty.png").write_bytes(b"")
    (folder / "clinic b" / "text.gif").write_text("hello")
    picture(folder / "loose.png")
    with pytest.raises(DataError) as error:
        add_set(folder, "photos", store)
    message = str(error.value)
    assert "4 images" in message
    for part in ("clinic a/cut.jpg: unreadable or truncated", "clinic b/empty.png", "text.gif", "no client's folder"):
        assert part in message
    assert not (store / "prepared").exists()
    prepared = add_set(folder, "photos", store, on_bad="skip")
    assert prepared.manifest.train == 8
    assert left_out_before(prepared.folder) == {
        "clinic a/cut.jpg",
        "clinic b/empty.png",
        "clinic b/text.gif",
        "loose.png",
    }


def test_everything_wrong_is_told_at_once(folder, store):
    picture(folder / "clinic a" / "odd.png", (5, 9))
    (folder / "clinic a" / "torn.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"(?s)1 image .*--on-bad skip.*torn\.png.*\n1 image .*--on-odd.*odd\.png"):
        add_set(folder, "photos", store)


def test_odd_sized_images(folder, store):
    picture(folder / "clinic a" / "odd.png", (5, 9))
    with pytest.raises(DataError, match=r"clinic a/odd\.png: odd-sized: 5x9 \(height x width\), expected 6x6"):
        add_set(folder, "photos", store)
    assert add_set(folder, "photos", store, on_odd="skip").manifest.train == 8
    resized = add_set(folder, "photos", store, on_odd="resize", force=True)
    assert resized.manifest.train == 9
    assert resized.manifest.shape == (1, 6, 6)
    assert add_set(folder, "small", store, size="3x4", on_odd="resize").manifest.shape == (1, 3, 4)


def test_empty_folders(tmp_path, folder, store):
    empty = tmp_path / "empty"
    with pytest.raises(DataError, match=r"does not exist"):
        add_set(empty, "photos", store)
    empty.mkdir()
    with pytest.raises(DataError, match=r"has no sub-folders.*put the images of each client into a folder of its own"):
        add_set(empty, "photos", store)
    (folder / "clinic c").mkdir()
    (folder / "clinic d").mkdir()
    with pytest.raises(DataError, match=r"no usable image in the folders of these clients.*clinic c, clinic d"):
        add_set(folder, "photos", store)


def test_a_client_of_which_nothing_is_left(folder, store):
    (folder / "clinic c").mkdir()
    (folder / "clinic c" / "x.png").write_text("no")
    with pytest.raises(DataError, match=r"(?s)no usable image in the folders of these clients .*: clinic c;.*x\.png"):
        add_set(folder, "photos", store, on_bad="skip")
    for path in folder.rglob("*.png"):
        path.write_text("no")
    with pytest.raises(DataError, match=r"no usable image in the folders of these clients"):
        add_set(folder, "photos", store, on_bad="skip")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mnist", "built-in"),
        ("gaussian-clusters3", "built-in"),
        ("Photos", "cannot name"),
        ("../x", "cannot name"),
        ("", "cannot name"),
    ],
)
def test_names(name, message, folder, store):
    with pytest.raises(DataError, match=message):
        add_set(folder, name, store)


def test_an_own_name_is_taken_once(folder, store):
    add_set(folder, "photos", store)
    with pytest.raises(DataError, match=r"already"):
        add_set(folder, "photos", store)


def test_labels(folder, store, tmp_path):
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.png"))
    labels = tmp_path / "labels.csv"
    rows = [f"{file},{'cat' if i % 2 else 'ant'}" for i, file in enumerate(files)]
    labels.write_text("file,label\n" + "\n".join(reversed(rows)))
    prepared = add_set(folder, "photos", store, labels=labels)
    assert prepared.train_y.tolist() == [0, 1] * 4
    assert prepared.manifest.class_names == ("ant", "cat")
    labels.write_text("\n".join(["file,label", *rows, "clinic a/later.png,cat"]))
    intake = Intake()
    add_set(folder, "photos", store, labels=labels, force=True, intake=intake)
    assert intake.noted["table with labels of other files"] == {"labels.csv": "clinic a/later.png"}
    for text, message in [
        ("\n".join(["file,label", *rows[1:]]), "no label for 1 samples: clinic a/a0.png"),
        ("\n".join(["file,label", *rows, rows[0]]), "more than once: clinic a/a0.png"),
        ("\n".join(["path,label", *rows]), "no column 'file'"),
        ("", "is empty: expected a table"),
    ]:
        labels.write_text(text)
        with pytest.raises(DataError, match=message):
            add_set(folder, "photos", store, labels=labels, force=True)


def test_labels_that_are_numbers_keep_their_order(folder, store, tmp_path):
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.png"))
    labels = tmp_path / "labels.csv"
    labels.write_text("file,label\n" + "\n".join(f"{file},{10 if i % 2 else 9}" for i, file in enumerate(files)))
    assert add_set(folder, "photos", store, labels=labels).manifest.class_names == ("9", "10")


def test_test_part_keeps_two_samples_of_every_client(folder, store):
    prepared = add_set(folder, "photos", store, test=0.5)
    assert (prepared.manifest.train, prepared.manifest.test) == (4, 4)
    assert prepared.column("client").tolist() == [0, 0, 1, 1]
    assert add_set(folder, "most", store, test=0.99).manifest.train == 4
    with pytest.raises(DataError, match=r"test is 1\.0"):
        add_set(folder, "all", store, test=1.0)


def test_wrong_choices(folder, store):
    with pytest.raises(DataError, match=r"on_bad is 'ignore', expected one of refuse, skip"):
        add_set(folder, "photos", store, on_bad="ignore")
    with pytest.raises(DataError, match=r"--size '0x4': expected HEIGHTxWIDTH"):
        add_set(folder, "photos", store, size="0x4")
