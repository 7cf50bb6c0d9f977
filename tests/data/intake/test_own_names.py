"""Nothing of a user's own data changes on the way in: names of clients, columns, and which files are meant."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from shoal.core.errors import DataError
from shoal.data.sets.intake_notes import Intake
from tests.added_sets import add_set


def table(folder: Path, text: str) -> Path:
    path = folder / "t.csv"
    path.write_text(text)
    return path


def test_texts_stay_as_written(tmp_path: Path) -> None:
    rows = "client,a,label\n1,2,007\n02,3,7.5\nNA,5,TRUE\n1,6,NA\n"
    found = add_set(table(tmp_path, rows), "mine", tmp_path / "s", label_column="label")
    names = np.array(found.manifest.extra["clients"])
    assert names[found.column("client")].tolist() == ["1", "02", "NA", "1"]
    assert set(found.manifest.class_names) == {"007", "7.5", "TRUE", "NA"}


def test_whole_numbers_keep_their_order(tmp_path: Path) -> None:
    found = add_set(table(tmp_path, "client,a\n10,1\n2,1\n-3,1\n"), "mine", tmp_path / "s")
    assert found.manifest.extra["clients"] == ["-3", "2", "10"]
    assert found.column("client").tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("client,a,a\nx,1,2\n", r"t\.csv has these columns more than once: a"),
        ("client,a,client\nx,1,y\n", r"more than once: client"),
        (",client,a\n0,x,2\n", r"column 1 has no name"),
        ("client,a\nx,1,2\n", r"t\.csv cannot be read as a table"),
        ("client,a\nx,1\ny,2,3\n", r"t\.csv cannot be read as a table"),
        ("client,a\n,1\n", r"1 rows have no client in 'client': row 0"),
        ("client,a\nx," + "9" * 5000 + "\n", r"a: "),
    ],
)
def test_tables_that_would_be_changed_are_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        add_set(table(tmp_path, text), "mine", tmp_path / "s")


def test_names_that_are_no_text_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "photos" / "a"
    folder.mkdir(parents=True)
    for name in ("\udcff.png", "2.png"):
        Image.fromarray(np.full((8, 8), len(name), np.uint8)).save(folder / "1.png")
        (folder / "1.png").rename(folder / name)
    intake = Intake()
    found = add_set(folder.parent, "mine", tmp_path / "s", intake=intake)
    assert found.manifest.train == 1
    assert intake.left_out == {"its name is not text in UTF-8": {"a/\udcff.png": ""}}


def test_a_parquet_file_of_text_that_is_none_is_refused(tmp_path: Path) -> None:
    frame = pd.DataFrame({"client": ["xxxx", "yyyy"], "a": [1.0, 2.0]})
    path = tmp_path / "t.parquet"
    frame.to_parquet(path, compression=None, index=False)
    path.write_bytes(path.read_bytes().replace(b"xxxx", b"\xff\xfe\xfd\xfc"))
    with pytest.raises(DataError, match=r"t\.parquet cannot be read as a table \(.*UTF"):
        add_set(path, "mine", tmp_path / "s")
