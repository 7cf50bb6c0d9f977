"""Own sets are stored apart by client: numbers of samples stay, and only the files of those asked for are opened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from shoal.core.errors import DataError
from shoal.data.partition.make import make_partition
from shoal.data.partition.schemes import IID, ByColumn
from shoal.data.sets import prepared as prepared_module
from shoal.data.sets.by_client import ClientArray
from shoal.data.sets.prepared import PreparedSet, array_digest, open_prepared, write_prepared
from shoal.data.views.view import DeviceData, all_samples, client_samples
from tests.added_sets import add_set

ROWS = 30
OWNERS = [0, 2, 1, 0, 0, 2] * 5


def add(folder: Path, test: float = 0.0) -> PreparedSet:
    """Return a set of 30 rows whose value is the row's number, and whose label is that number modulo 3."""
    frame = pd.DataFrame(
        {"client": ["abc"[k] for k in OWNERS], "v": np.arange(ROWS) * 1.5, "label": np.arange(ROWS) % 3}
    )
    frame.to_csv(folder / "t.csv", index=False)
    return add_set(folder / "t.csv", "mine", folder / "store", label_column="label", test=test)


@pytest.fixture
def opened_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The arrays that are opened, by client and name."""
    found: list[str] = []
    real = prepared_module._mapped

    def noted(path: Path) -> np.ndarray:
        if path.parent.parent.name == "clients":
            found.append(f"{path.parent.name}/{path.name}")
        return real(path)

    monkeypatch.setattr(prepared_module, "_mapped", noted)
    return found


def test_numbers_of_samples_are_those_of_the_table(tmp_path: Path) -> None:
    mine = add(tmp_path)
    assert isinstance(mine.train_x, ClientArray)
    expected = (np.arange(ROWS) * 1.5).astype(np.float32)[:, None]
    assert np.array_equal(np.asarray(mine.train_x), expected)
    assert mine.train_x[7].tolist() == [10.5]
    assert mine.train_x[-1].tolist() == [43.5]
    assert np.array_equal(mine.train_x[3:20:4], expected[3:20:4])
    rows = np.array([29, 0, 17, 17])
    assert np.array_equal(mine.train_x[rows], expected[rows])
    chosen = np.arange(ROWS) % 7 == 0
    assert np.array_equal(mine.train_x[chosen], expected[chosen])
    assert mine.train_x[rows, 0].tolist() == expected[rows, 0].tolist()
    assert [float(x[0]) for x in mine.train_x] == expected[:, 0].tolist()
    assert mine.train_y is not None
    assert mine.train_y.tolist() == [k % 3 for k in range(ROWS)]
    arrays = {"train_x": expected, "train_y": np.arange(ROWS) % 3}
    assert mine.manifest.digest == array_digest({**arrays, "client": np.array(OWNERS)})
    with pytest.raises(IndexError):
        mine.train_x[ROWS]


def test_a_client_has_its_own_folder_alone(tmp_path: Path) -> None:
    mine = add(tmp_path, test=0.2)
    for client in range(3):
        folder = mine.folder / "clients" / f"{client:04d}"
        values = [np.load(folder / f"{part}_x.npy") for part in ("train", "test")]
        rows = (np.concatenate(values)[:, 0] / 1.5).astype(int)
        assert {OWNERS[row] for row in rows} == {client}
        assert len(rows) == OWNERS.count(client)
        assert set(pd.read_parquet(folder / "files.parquet")["file"]) == {f"t.csv:{row}" for row in rows}
    assert not list(mine.folder.glob("*_x.npy"))


def test_training_a_client_opens_no_file_of_another(tmp_path: Path, opened_files: list[str]) -> None:
    mine = add(tmp_path, test=0.2)
    partition = make_partition(ByColumn(validation=0.2), mine)
    rows = partition.samples_of(1)
    expected = [float(v) for v in mine.train_x[rows][:, 0]]
    data = DeviceData(open_prepared(mine.folder))
    for other in (0, 2):
        for path in (mine.folder / "clients" / f"{other:04d}").iterdir():
            path.write_bytes(b"")
    opened_files.clear()
    samples = client_samples(data, partition, 1)
    assert samples.x()[:, 0].tolist() == expected
    assert samples.take(torch.tensor([1, 0])).x()[:, 0].tolist() == [expected[1], expected[0]]
    assert samples.y().tolist() == [row_of(v) % 3 for v in expected]
    test_part = client_samples(data, partition, 1, validation=True)
    assert test_part.x()[:, 0].tolist() == [float(v) for v in mine.train_x[test_part.index.numpy()][:, 0]]
    assert set(opened_files) == {"0001/train_x.npy", "0001/train_y.npy"}
    with pytest.raises(DataError):
        all_samples(data, partition).x()


def row_of(value: float) -> int:
    return int(value / 1.5)


def test_any_partition_gives_the_same_samples_as_a_pooled_set(tmp_path: Path) -> None:
    mine = add(tmp_path, test=0.2)
    arrays = {name: np.asarray(getattr(mine, name)) for name in ("train_x", "train_y", "test_x", "test_y")}
    write_prepared(tmp_path / "pooled", mine.manifest, arrays)
    pooled = DeviceData(open_prepared(tmp_path / "pooled"))
    apart = DeviceData(mine)
    partition = make_partition(IID(clients=4), mine)
    for client in range(4):
        one = client_samples(pooled, partition, client)
        other = client_samples(apart, partition, client)
        assert torch.equal(one.x(), other.x())
        assert torch.equal(one.y(), other.y())
    assert torch.equal(all_samples(pooled, partition).x(), all_samples(apart, partition).x())
    assert torch.equal(pooled.test_x[:], apart.test_x[:])
    assert apart.test_y is not None
    assert pooled.test_y is not None
    assert torch.equal(pooled.test_y[:], apart.test_y[:])
