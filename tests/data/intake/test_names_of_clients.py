"""One value is one client or label, whatever type or spelling a file gives it; else it is refused."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest

from shoal.core.errors import DataError
from shoal.data.intake.names import in_order, names_of
from shoal.data.sets.intake_notes import Intake
from tests.added_sets import add_set

WHERE = Path("file")
X = np.arange(12, dtype=np.float32).reshape(6, 2)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (np.array([10, 2]), ["10", "2"]),
        (np.array([10, 2], np.float32), ["10", "2"]),
        (np.array([1.5, -0.0]), ["1.5", "0"]),
        (np.array([0.1, 2], np.float32), ["0.1", "2"]),
        (pd.array([10, 2], "Int64"), ["10", "2"]),
        (pd.Categorical([10.0, 2.0]), ["10", "2"]),
        ([Decimal("10.00"), Decimal("1.5")], ["10", "1.5"]),
    ],
)
def test_a_value_has_one_name(values: Any, names: list[str]) -> None:
    assert names_of(pd.Series(values), WHERE, "client").tolist() == names


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1.0, np.nan], r"file: 1 rows have no client in 'site': row 1"),
        (pd.array([None, True], "boolean"), r"have no client in 'site': row 0"),
        ([float(2**53), 1.0], r"client column site holds 9007199254740992 as a float, which does not hold every whole"),
        (np.array([2**24, 1], np.float32), r"holds 16777216 as a float"),
        ([np.inf, 1.0], r"holds inf, which is no name"),
        ([b"\xff", b"a"], r"holds bytes: expected text or whole numbers"),
        ([[1], [2]], r"holds list: expected text or whole numbers"),
        ([True, 1.0], r"file: clients that look alike or may be one value: 'True' and '1': write each"),
        (["07", "7"], r"may be one value: '07' and '7'"),
    ],
)
def test_a_value_without_a_name_is_refused(values: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        names_of(pd.Series(values, name="site"), WHERE, "client")


def test_other_spellings_of_names_of_a_set_are_refused() -> None:
    for text, there in (("1.0", "1"), ("2", "2.0"), ("TRUE", "true"), ("ca\u200bf\u00e9", "caf\u00e9")):
        with pytest.raises(DataError, match=r"may be one value: .*write each in one way, in this file and in the set"):
            names_of(pd.Series([text]), WHERE, "label", [there])
    with pytest.raises(DataError, match="'0' and 'False'"):
        names_of(pd.Series([False]), WHERE, "label", ["0"])
    older = names_of(pd.Series(["1", "01"]), WHERE, "label", ["1", "01"])
    assert older.tolist() == ["1", "01"], "a set that has both goes on with both"
    assert in_order(names_of(pd.Series([10.0, 2.0]), WHERE, "client")) == ["2", "10"]


def test_one_client_in_tables_of_several_types(tmp_path: Path) -> None:
    rows = pd.DataFrame({"client": [1, 2] * 3, "v": np.arange(6) * 1.5, "kind": [0, 1, 2] * 2})
    rows.to_parquet(tmp_path / "whole.parquet")
    rows.assign(v=rows.v + 1, client=rows.client.astype(float)).to_parquet(tmp_path / "floats.parquet")
    rows.assign(v=rows.v + 2, client=["1", "2", "3"] * 2).to_csv(tmp_path / "more.csv", index=False)
    add_set(tmp_path / "whole.parquet", "mine", tmp_path / "s", label_column="kind")
    add_set(tmp_path / "floats.parquet", "mine", tmp_path / "s", label_column="kind", append=True)
    intake = Intake()
    grown = add_set(
        tmp_path / "more.csv", "mine", tmp_path / "s", label_column="kind", append=True, intake=intake
    ).manifest
    assert grown.extra["clients"] == ["1", "2", "3"]
    assert grown.class_names == ("0", "1", "2")
    assert intake.noted["new client"] == {"3": ""}, "a client that nobody expected is told"


def test_numbers_of_another_machine(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=X, client=np.array([10, 2] * 3, ">i4"), label=np.array([1, 0] * 3, ">f8"))
    added = add_set(tmp_path / "x.npz", "mine", tmp_path / "s").manifest
    assert (added.extra["clients"], added.class_names) == (["2", "10"], ("0", "1"))


def test_a_cell_without_a_category_is_refused_and_so_is_old_anndata(tmp_path: Path) -> None:
    path = tmp_path / "x.h5ad"
    with h5py.File(path, "w") as file:
        file["X"] = X
        file["obs/donor/categories"] = ["Mia", "Noor"]
        file["obs/donor/codes"] = np.array([0, 1, 0, -1, 0, 1], "i1")
    with pytest.raises(DataError, match="1 rows have no client in 'donor': row 3"):
        add_set(path, "mine", tmp_path / "s", client_column="donor")
    with h5py.File(path, "a") as file:
        file["obs/__categories/donor"] = ["Mia", "Noor"]
    with pytest.raises(DataError, match="was written by an old AnnData"):
        add_set(path, "mine", tmp_path / "s", client_column="donor")
