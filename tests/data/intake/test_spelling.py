"""A name in two spellings is one name, and that is said; or it is refused with both."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from shoal.core.errors import DataError
from shoal.data.intake.spelling import refuse_alike
from shoal.data.sets.intake_notes import Intake
from tests.added_sets import add_set

CAFE = "caf\u00e9"
DECOMPOSED = unicodedata.normalize("NFD", CAFE)


@pytest.mark.parametrize("other", [f" {CAFE}", f"{CAFE}\t", f"{CAFE}\u00a0", DECOMPOSED])
def test_spellings_of_one_name(tmp_path: Path, other: str) -> None:
    rows = [(CAFE, "x"), (other, " x"), (CAFE, "x"), ("b", "z")] * 2
    table = pd.DataFrame({"client": [a for a, _ in rows], "kind": [b for _, b in rows], "v": np.arange(8) * 1.5})
    table.to_csv(tmp_path / "t.csv", index=False)
    intake = Intake()
    added = add_set(tmp_path / "t.csv", "mine", tmp_path / "s", label_column="kind", intake=intake)
    assert added.manifest.extra["clients"] == ["b", CAFE]
    assert added.column("client").tolist() == [1, 1, 1, 0] * 2
    assert added.manifest.class_names == ("x", "z")
    assert intake.adapted["clients in another spelling"] == {ascii(other): f"taken as {CAFE!a}"}
    assert intake.adapted["labels in another spelling"] == {"' x'": "taken as 'x'"}


@pytest.mark.parametrize("other", ["ca\u200bf\u00e9", f"\ufeff{CAFE}", f"{CAFE}\u200d"])
def test_letters_without_width_are_refused(other: str) -> None:
    with pytest.raises(DataError, match=r"clients that look alike .*: 'caf\\xe9' and '.*\\u"):
        refuse_alike([CAFE, other], "clients", "file")


@pytest.mark.parametrize("other", ["Caf\u00e9", "cafe", "caf\u00e9s", "2"])
def test_other_names_stay_others(other: str) -> None:
    refuse_alike([CAFE, "1", other], "clients", "file")


def test_columns_that_look_alike_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"client,v,v ,{CAFE},{DECOMPOSED}\na,1,2,3,4\n", encoding="utf-8")
    with pytest.raises(
        DataError, match=r"columns that look alike or may be one value: 'v' and 'v ', 'caf\\xe9' and 'cafe\\u0301'"
    ):
        add_set(tmp_path / "t.csv", "mine", tmp_path / "s")


def picture(path: Path, grey: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8), grey, np.uint8)).save(path)


def test_folders_of_one_client(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    for number, name in enumerate([CAFE, DECOMPOSED, "b", "b "]):
        picture(folder / name / f"{number}.png", number * 10)
    intake = Intake()
    found = add_set(folder, "mine", tmp_path / "s", intake=intake)
    assert found.manifest.extra["clients"] == ["b", CAFE]
    assert np.bincount(found.column("client")).tolist() == [2, 2]
    assert set(intake.adapted["clients in another spelling"]) == {"'b '", ascii(DECOMPOSED)}
    picture(folder / f"{CAFE} " / "9.png", 90)
    more = add_set(folder, "mine", tmp_path / "s", append=True)
    assert more.manifest.extra["clients"] == ["b", CAFE]
    assert more.column("client")[-1] == 1


def test_files_of_labels_are_found_in_any_spelling(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    for name in (f"{CAFE}/1.png", "b/2.png", "b/3.png"):
        picture(folder / name, len(name) + int(name[-5]))
    (tmp_path / "l.csv").write_text(
        f"file,label\n{DECOMPOSED}\\1.png,cat\n b\\2.png ,dog\n./b/3.png,dog \n", encoding="utf-8"
    )
    intake = Intake()
    found = add_set(folder, "mine", tmp_path / "s", labels=tmp_path / "l.csv", intake=intake)
    assert found.manifest.class_names == ("cat", "dog")
    files = found.manifest.extra["clients"]
    labels = {files[c]: int(y) for c, y in zip(found.column("client"), np.asarray(found.train_y), strict=True)}
    assert labels == {CAFE: 0, "b": 1}
    (tmp_path / "l.csv").write_text("file,label\nb/2.png,x\nb\\2.png,x\nb/3.png,y\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"labels these files more than once: b/2\.png"):
        add_set(folder, "mine", tmp_path / "s", labels=tmp_path / "l.csv", force=True)


@pytest.mark.parametrize(
    ("name", "raw", "said"),
    [
        ("t.csv", b"", "t.csv is empty"),
        ("t.csv", b"\n\n", "t.csv is empty"),
        ("t.parquet", b"", "t.parquet is empty"),
        ("t.csv.gz", b"", "t.csv.gz is empty"),
        ("t.csv", b"client,v\n", "has no rows"),
        ("t.csv", "client,v\né,1\n".encode("cp1252"), r"not text in UTF-8 \(.*0xe9.*\): save it as CSV UTF-8"),
        ("t.csv", "client,v\né,1\n".encode("utf-16"), "not text in UTF-8"),
        ("t.csv", b"client;v\na;1\n", "separate values with ';': save it with commas"),
        (
            "t.csv",
            b"Client,v\na,1\n",
            "has no column 'client'; its columns: Client, v: name the right one with --client-column",
        ),
        ("t.csv", b"client,v\n  ,1\na,2\n", "1 rows have no client in 'client': row 0"),
    ],
)
def test_files_that_are_no_table(tmp_path: Path, name: str, raw: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(DataError, match=said) as refused:
        add_set(tmp_path / name, "mine", tmp_path / "s")
    assert "\n" not in str(refused.value)


def test_names_of_rows_are_a_column(tmp_path: Path) -> None:
    frame = pd.DataFrame({"client": ["a", "b"], "v": [1.5, 2.5]})
    frame.set_index("client").to_parquet(tmp_path / "t.parquet")
    intake = Intake()
    found = add_set(tmp_path / "t.parquet", "mine", tmp_path / "s", intake=intake)
    assert found.manifest.extra["clients"] == ["a", "b"]
    assert found.manifest.extra["features"] == ["v"]
