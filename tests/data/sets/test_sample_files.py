from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from shoal.core.errors import DataError
from shoal.data.sets.by_client import client_file
from shoal.data.sets.prepared import PreparedSet, open_prepared
from shoal.data.sets.sample_files import FILES, sample_files
from tests.added_sets import add_set


@pytest.fixture
def photos(tmp_path: Path) -> PreparedSet:
    """Ten images of two clients, four of them in the test part; image i of a client is filled with its number."""
    for c, client in enumerate(("east", "west")):
        for i in range(5):
            path = tmp_path / "photos" / client / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((4, 4), 10 * c + i, np.uint8)).save(path)
    return add_set(tmp_path / "photos", "photos", tmp_path / "store", test=0.4)


def test_every_sample_is_traced_to_its_file(photos: PreparedSet) -> None:
    table = sample_files(photos)
    assert table is not None
    assert list(table.columns) == ["part", "index", "client", "file"]
    assert table["part"].tolist() == ["train"] * 6 + ["test"] * 4
    assert photos.test_x is not None
    for row in table.itertuples():
        pixels = (photos.train_x if row.part == "train" else photos.test_x)[row.Index if row.part == "train" else
                                                                             row.Index - 6]  # fmt: skip
        assert table.loc[row.Index, "index"] == (row.Index if row.part == "train" else row.Index - 6)
        client, name = row.file.split("/")
        assert client == row.client
        assert pixels.max() == 10 * (client == "west") + int(name.removesuffix(".png"))


def test_rows_of_a_table_are_numbered(tmp_path: Path) -> None:
    pd.DataFrame({"client": ["b", "a"] * 4, "v": range(8)}).to_csv(tmp_path / "t.csv", index=False)
    prepared = add_set(tmp_path / "t.csv", "rows", tmp_path / "store", test=0.25)
    table = sample_files(prepared)
    assert table is not None
    train = table[table["part"] == "train"]
    assert [f"t.csv:{int(v)}" for v in prepared.train_x[:, 0]] == train["file"].tolist()
    assert set(table["file"]) == {f"t.csv:{k}" for k in range(8)}
    assert train["client"].tolist() == ["ba"[int(v) % 2] for v in prepared.train_x[:, 0]]


def test_sets_without_file_names_have_none(digits: PreparedSet) -> None:
    assert sample_files(digits) is None


def test_a_changed_or_missing_table_is_named(photos: PreparedSet) -> None:
    path = photos.folder / client_file(0, FILES)
    pd.read_parquet(path).assign(file="other").to_parquet(path, index=False)
    with pytest.raises(DataError, match=r"0000/files\.parquet is missing or is not the file"):
        sample_files(open_prepared(photos.folder))
    path.unlink()
    with pytest.raises(DataError, match=r"0000/files\.parquet is missing .*add all of it again"):
        sample_files(photos)
