"""CSV files that people open: text that a spreadsheet would compute is text, and can be read back."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.data.sets.csv_file import as_text, write_csv

FORMULAS = ("=1+1.png", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "=HYPERLINK(1)", "\uff1d1")


def from_text(value: str) -> str:
    """The original of a text that `as_text` returned."""
    return value[1:] if value.startswith("'") and as_text(value[1:]) == value else value


def test_no_cell_begins_as_a_formula(tmp_path: Path) -> None:
    table = pd.DataFrame(
        {"file": [*FORMULAS, "a.png", "'=1", None], "=cmd": "x", "loss": np.linspace(-1, 1, 12), "n": -3}
    )
    before = table.copy()
    write_csv(table, tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["file", "'=cmd", "loss", "n"]
    assert [row[0] for row in rows[1:-1]] == [f"'{name}" for name in FORMULAS] + ["a.png", "''=1"]
    assert [from_text(row[0]) for row in rows[1:-1]] == [*FORMULAS, "a.png", "'=1"]
    assert [float(row[2]) for row in rows[1:]] == list(table["loss"]), "numbers stay numbers"
    assert {row[3] for row in rows[1:]} == {"-3"}
    pd.testing.assert_frame_equal(table, before)


@given(st.text())
def test_text_can_be_read_back(text: str) -> None:
    assert from_text(as_text(text)) == text
    assert not as_text(text).startswith(("=", "+", "-", "@", "\t", "\r"))


def test_a_carriage_return_begins_no_row(tmp_path: Path) -> None:
    write_csv(pd.DataFrame({"file": ["a\r=1+1", "b"], "n": [1, 2]}), tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(newline="", encoding="utf-8") as file:
        assert list(csv.reader(file)) == [["file", "n"], ["a\r=1+1", "1"], ["b", "2"]]


def test_columns_of_one_name_and_of_mixed_kinds(tmp_path: Path) -> None:
    table = pd.DataFrame([[-1, "=1"], ["=2", 3.5]], columns=["a", "a"])
    write_csv(table, tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text() == "a,a\n-1,'=1\n'=2,3.5\n"


@pytest.mark.parametrize("table", [pd.DataFrame(), pd.DataFrame({"a": pd.Series([], dtype=str)})])
def test_tables_without_rows(tmp_path: Path, table: pd.DataFrame) -> None:
    write_csv(table, tmp_path / "t.csv")
    assert (tmp_path / "t.csv").exists()
