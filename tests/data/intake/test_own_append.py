"""Appending to a set of one's own: what it has keeps its order, its part and its numbers."""

import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from shoal.core.errors import DataError
from shoal.data.sets.intake_notes import left_out_before
from shoal.data.sets.prepared import PreparedSet, open_prepared
from shoal.data.sets.sample_files import sample_files
from tests.added_sets import add_set


def fill(folder: Path, client: str, values: range, size: int = 4, *, colour: bool = False) -> None:
    """Images filled with one value each, and named after it."""
    (folder / client).mkdir(parents=True, exist_ok=True)
    for value in values:
        shape = (size, size, 3) if colour else (size, size)
        Image.fromarray(np.full(shape, value, np.uint8)).save(folder / client / f"{value}.png")


def values(prepared: PreparedSet, part: str) -> list[int]:
    x = prepared.train_x if part == "train" else prepared.test_x
    assert x is not None
    return [int(each) for each in x[:, 0, 0, 0]]


def labels(path: Path, folder: Path, label_of: dict[int, str]) -> Path:
    files = sorted(folder.rglob("*.png"))
    rows = [f"{f.relative_to(folder).as_posix()},{label_of[int(f.stem)]}" for f in files if int(f.stem) in label_of]
    path.write_text("\n".join(["file,label", *rows]))
    return path


def test_new_images_of_known_and_new_clients(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    store = tmp_path / "store"
    fill(photos, "b", range(10, 16))
    fill(photos, "d", range(20, 26))
    first = add_set(photos, "photos", store, test=0.34)
    train, test = values(first, "train"), values(first, "test")
    clients = first.column("client").tolist()
    fill(photos, "b", range(16, 19))
    fill(photos, "a", range(30, 34))
    more = add_set(photos, "photos", store, append=True, test=0.5)
    assert values(more, "train")[: len(train)] == train
    assert values(more, "test")[: len(test)] == test
    assert sorted([*values(more, "train"), *values(more, "test")]) == [*range(10, 19), *range(20, 26), *range(30, 34)]
    assert more.manifest.test > len(test)
    assert more.manifest.extra["clients"] == ["b", "d", "a"]
    assert more.column("client")[: len(train)].tolist() == clients
    names = more.manifest.extra["clients"]
    assert [names[k] for k in more.column("client")] == ["bda"[v // 10 - 1] for v in values(more, "train")]
    files = sample_files(more)
    assert files is not None
    assert files["file"].tolist() == [
        f"{'bda'[v // 10 - 1]}/{v}.png" for v in [*values(more, "train"), *values(more, "test")]
    ]
    assert more.manifest.source.endswith("; then folder photos, 7 images of 2 clients")
    assert open_prepared(more.folder, verify=True).manifest == more.manifest
    with pytest.raises(DataError, match=r"has all of these 19 images already"):
        add_set(photos, "photos", store, append=True)


def test_labels_keep_their_numbers(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    store = tmp_path / "store"
    fill(photos, "b", range(10, 14))
    known = {10: "cat", 11: "owl", 12: "cat", 13: "owl"}
    add_set(photos, "photos", store, labels=labels(tmp_path / "l.csv", photos, known))
    fill(photos, "b", range(14, 17))
    with pytest.raises(DataError, match=r"has labels: what is appended to it needs labels"):
        add_set(photos, "photos", store, append=True)
    table = labels(tmp_path / "l.csv", photos, {**known, 14: "ape", 15: "owl", 16: "dog"})
    more = add_set(photos, "photos", store, append=True, labels=table)
    assert more.manifest.class_names == ("cat", "owl", "ape", "dog")
    assert more.manifest.classes == 4
    assert more.train_y is not None
    assert more.train_y.tolist() == [0, 1, 0, 1, 2, 1, 3]


def test_labels_that_come_later_are_added_to_the_samples(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    store = tmp_path / "store"
    fill(photos, "b", range(10, 16))
    first = add_set(photos, "photos", store, test=0.34)
    known = {value: "owl" if value % 2 else "cat" for value in range(10, 16)}
    some = labels(tmp_path / "l.csv", photos, {10: "cat"})
    with pytest.raises(DataError, match=r"l\.csv has no label for 5 samples: b/11\.png"):
        add_set(photos, "photos", store, append=True, labels=some)
    table = labels(tmp_path / "l.csv", photos, known)
    labelled = add_set(photos, "photos", store, append=True, labels=table)
    assert labelled.manifest.class_names == ("cat", "owl")
    for part, y in (("train", labelled.train_y), ("test", labelled.test_y)):
        assert y is not None
        assert values(labelled, part) == values(first, part)
        assert y.tolist() == [value % 2 for value in values(first, part)]
    version = {"digest": first.manifest.digest, "train": first.manifest.train, "test": first.manifest.test}
    assert labelled.manifest.extra["versions"] == [version]
    assert open_prepared(labelled.folder, verify=True).manifest == labelled.manifest
    with pytest.raises(DataError, match=r"has all of these 6 images already: nothing to append"):
        add_set(photos, "photos", store, append=True, labels=table)


def test_new_images_and_first_labels_come_one_after_the_other(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    store = tmp_path / "store"
    fill(photos, "b", range(10, 14))
    first = add_set(photos, "photos", store)
    fill(photos, "b", range(14, 16))
    table = labels(tmp_path / "l.csv", photos, dict.fromkeys(range(10, 16), "cat"))
    with pytest.raises(DataError, match=r"has new images: append them without --labels"):
        add_set(photos, "photos", store, append=True, labels=table)
    assert open_prepared(first.folder, verify=True).manifest == first.manifest
    add_set(photos, "photos", store, append=True)
    labelled = add_set(photos, "photos", store, append=True, labels=table)
    assert labelled.train_y is not None
    assert labelled.train_y.tolist() == [0] * 6


def test_labels_of_rows_of_a_table(tmp_path: Path) -> None:
    store = tmp_path / "store"
    pd.DataFrame({"client": ["y", "x"] * 3, "v": range(6)}).to_csv(tmp_path / "may.csv", index=False)
    add_set(tmp_path / "may.csv", "rows", store)
    rows = pd.DataFrame({"file": [f"may.csv:{row}" for row in range(6)], "label": ["a", "b", "c"] * 2})
    rows.iloc[::-1].to_csv(tmp_path / "l.csv", index=False)
    labelled = add_set(tmp_path / "may.csv", "rows", store, append=True, labels=tmp_path / "l.csv")
    assert labelled.train_y is not None
    assert labelled.train_y.tolist() == [0, 1, 2] * 2


def test_what_does_not_fit_is_refused_and_the_set_stays(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    store = tmp_path / "store"
    fill(photos, "b", range(10, 14))
    with pytest.raises(DataError, match=r"no data set 'photos' to append to; your own: none"):
        add_set(photos, "photos", store, append=True)
    first = add_set(photos, "photos", store)
    fill(tmp_path / "large", "b", range(50, 53), size=6)
    fill(tmp_path / "coloured", "b", range(50, 53), colour=True)
    for folder, message in (
        ("large", "odd-sized: 6x6"),
        ("coloured", r"(?s)3 images .*coloured, and the set is grey"),
    ):
        with pytest.raises(DataError, match=message):
            add_set(tmp_path / folder, "photos", store, append=True)
    with pytest.raises(DataError, match=r"holds images of 4x4: leave the size out"):
        add_set(tmp_path / "large", "photos", store, append=True, size="6x6")
    with pytest.raises(DataError, match=r"--append adds .* and --force replaces"):
        add_set(photos, "photos", store, append=True, force=True)
    fill(photos, "c", range(20, 22))
    Image.fromarray(np.full((4, 4), 99, np.uint8)).save(photos / "b" / "11.png")
    os.utime(photos / "b" / "11.png", (0, 0))  # as `cp -p` leaves it
    with pytest.raises(DataError, match=r"(?s)1 image .*\n  b/11\.png: is another image than the one of this name"):
        add_set(photos, "photos", store, append=True)
    pd.DataFrame({"client": ["b"], "v": [1.0]}).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(DataError, match=r"'photos' holds images: rows of a table cannot be appended"):
        add_set(tmp_path / "t.csv", "photos", store, append=True)
    assert open_prepared(first.folder, verify=True).manifest == first.manifest
    (tmp_path / "large" / "b" / "broken.png").write_text("no")
    add_set(tmp_path / "large", "photos", store, append=True, on_odd="resize", on_bad="skip")
    fill(tmp_path / "large", "b", range(60, 61))
    resized = add_set(tmp_path / "large", "photos", store, append=True, on_odd="resize", on_bad="skip")
    assert left_out_before(resized.folder) == {"b/broken.png"}
    assert resized.manifest.extra["on_odd"] == "resize"


def test_rows_of_another_table(tmp_path: Path) -> None:
    store = tmp_path / "store"
    pd.DataFrame({"client": ["y", "x"] * 3, "v": range(6), "w": 0}).to_csv(tmp_path / "may.csv", index=False)
    add_set(tmp_path / "may.csv", "rows", store)
    pd.DataFrame({"w": 1, "client": ["z", "x"] * 2, "v": range(6, 10)}).to_csv(tmp_path / "june.csv", index=False)
    more = add_set(tmp_path / "june.csv", "rows", store, append=True)
    assert more.train_x.tolist() == [[v, int(v > 5)] for v in range(10)]
    assert more.manifest.extra["clients"] == ["x", "y", "z"]
    assert more.column("client").tolist() == [1, 0, 1, 0, 1, 0, 2, 0, 2, 0]
    files = sample_files(more)
    assert files is not None
    assert files["file"].tolist()[5:8] == ["may.csv:5", "june.csv:0", "june.csv:1"]
    with pytest.raises(DataError, match=r"has rows of may\.csv already"):
        add_set(tmp_path / "may.csv", "rows", store, append=True)
    shutil.copy(tmp_path / "june.csv", tmp_path / "june (1).csv")
    with pytest.raises(DataError, match=r"june \(1\)\.csv has the same bytes as june\.csv, which is taken already"):
        add_set(tmp_path / "june (1).csv", "rows", store, append=True)
    assert open_prepared(more.folder).manifest == more.manifest
    pd.DataFrame({"client": ["x"], "v": [1], "u": [2]}).to_csv(tmp_path / "july.csv", index=False)
    with pytest.raises(DataError, match=r"it lacks w"):
        add_set(tmp_path / "july.csv", "rows", store, append=True)
