import numpy as np
import pandas as pd
import pytest

from shoal.core.errors import DataError
from shoal.data.partition.make import make_partition
from shoal.data.partition.schemes import ByColumn
from tests.added_sets import add_set


@pytest.fixture
def table():
    return pd.DataFrame(
        {
            "client": ["b", "a", "b", "a", "b", "a"],
            "height": [1.5, 2, 3, 4, 5, 6],
            "count": [1, 2, 3, 4, 5, 6],
            "member": [True, False] * 3,
            "kind": ["x", "y", "x", "y", "x", "z"],
        }
    )


@pytest.fixture
def store(tmp_path):
    return tmp_path / "store"


def write(table, path):
    if path.name.endswith(".parquet"):
        table.to_parquet(path, index=False)
    else:
        table.to_csv(path, index=False)
    return path


@pytest.mark.parametrize("suffix", ["parquet", "csv", "csv.gz"])
def test_vectors_clients_and_labels(table, tmp_path, store, suffix):
    prepared = add_set(write(table, tmp_path / f"t.{suffix}"), "sensors", store, label_column="kind")
    assert prepared.train_x.dtype == np.float32
    assert prepared.train_x.tolist()[:2] == [[1.5, 1, 1], [2, 2, 0]]
    assert prepared.train_y.tolist() == [0, 1, 0, 1, 0, 2]
    assert prepared.manifest.class_names == ("x", "y", "z")
    assert prepared.manifest.extra["clients"] == ["a", "b"]
    assert prepared.manifest.extra["features"] == ["height", "count", "member"]
    assert prepared.column("client").tolist() == [1, 0, 1, 0, 1, 0]
    assert make_partition(ByColumn(), prepared).client_names == ("a", "b")


def test_numbers_as_clients_are_sorted_as_numbers(table, tmp_path, store):
    table = table.drop(columns="kind").assign(client=[10, 9, 10, 9, 10, 9])
    prepared = add_set(write(table, tmp_path / "t.csv"), "sensors", store)
    assert prepared.manifest.extra["clients"] == ["9", "10"]
    assert prepared.train_y is None


def test_bad_features_name_columns_and_rows(table, tmp_path, store):
    table = table.assign(height=[1, np.nan, 3, 4, np.inf, 6])
    with pytest.raises(DataError) as error:
        add_set(write(table, tmp_path / "t.csv"), "sensors", store)
    assert "missing values in height (1 value, row 1)" in str(error.value)
    assert "height: NaN or infinite in row 4" in str(error.value)
    assert "count:" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": ["1", "2", "three", "4", "5", "6"]}, r"count: not a number \('three'\) in row 2"),
        ({"count": [1e39, 2, 3, 4, 5, 6]}, "count: NaN or infinite in row 0"),
        ({"client": ["a", None, "b", "a", "b", "a"]}, "1 rows have no client in 'client': row 1"),
        ({"kind": ["x", None, "x", "y", "x", "z"]}, "1 rows have no label in 'kind'"),
    ],
)
def test_bad_values(table, tmp_path, store, change, message):
    path = write(table.assign(**change), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=message):
        add_set(path, "sensors", store, label_column="kind")
    assert not (store / "prepared").exists()


def test_bad_tables(table, tmp_path, store):
    path = write(table, tmp_path / "t.csv")
    with pytest.raises(
        DataError,
        match=r"no column 'site'; its columns: client, .*: name .* with --client-column; a table of one client",
    ):
        add_set(path, "sensors", store, client_column="site")
    with pytest.raises(DataError, match="no column 'y'"):
        add_set(path, "sensors", store, label_column="y")
    with pytest.raises(DataError, match="does not exist"):
        add_set(tmp_path / "no.csv", "sensors", store)
    with pytest.raises(DataError, match="no feature column"):
        add_set(write(table[["client"]], tmp_path / "c.csv"), "sensors", store)
    with pytest.raises(DataError, match="has no rows"):
        add_set(write(table[:0], tmp_path / "e.csv"), "sensors", store)
    with pytest.raises(DataError, match=r"expected \.parquet, \.csv"):
        add_set(write(table, tmp_path / "t.xls"), "sensors", store)
    broken = tmp_path / "b.parquet"
    write(table, broken)
    broken.write_bytes(broken.read_bytes()[:100])
    with pytest.raises(DataError, match="cannot be read as a table"):
        add_set(broken, "sensors", store)
    with pytest.raises(DataError, match="built-in"):
        add_set(path, "digits", store)


def test_test_part(table, tmp_path, store):
    table = pd.concat([table] * 10).drop(columns="kind")
    prepared = add_set(write(table, tmp_path / "t.parquet"), "sensors", store, test=0.2, seed=1)
    assert (prepared.manifest.train, prepared.manifest.test) == (48, 12)
    assert np.bincount(prepared.column("client")).tolist() == [24, 24]
