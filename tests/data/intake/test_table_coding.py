"""Texts of few values become columns of 0 and 1, missing values follow one rule, and later rows follow the set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from shoal.core.errors import DataError
from shoal.data.intake.table_coding import EMBEDDING, MEASUREMENTS, TableCoding, coding_of, encode, kind_of_columns
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.prepared import Manifest, PreparedSet
from tests.added_sets import add_set

CITIES = ["Oslo", "Rome", "Oslo", "Paris", "Rome", "Oslo"]
FRAME = {"client": ["a", "b"] * 3, "age": [1.0, 2, 3, 4, 5, 6], "city": CITIES}


def add(folder: Path, frame: dict[str, Any], file: str = "t.csv", **options: Any) -> tuple[PreparedSet, Intake]:
    path = folder / file
    if file.endswith(".csv"):
        pd.DataFrame(frame).to_csv(path, index=False)
    else:
        pd.DataFrame(frame).to_parquet(path, index=False)
    intake = Intake()
    return add_set(path, "mine", folder / "store", intake=intake, **options), intake


@pytest.mark.parametrize("file", ["t.csv", "t.parquet"])
def test_a_column_of_text_is_a_column_of_0_and_1_for_each_value(tmp_path: Path, file: str) -> None:
    prepared, intake = add(tmp_path, FRAME, file)
    assert prepared.manifest.extra["features"] == ["age", "city=Oslo", "city=Paris", "city=Rome"]
    assert prepared.train_x.tolist()[:2] == [[1, 1, 0, 0], [2, 0, 0, 1]]
    said = intake.adapted["column of text as a column of 0 and 1 for each value"]
    assert said == {"city": "3 values: Oslo, Paris, Rome"}
    assert prepared.spec.measurements
    assert prepared.spec.column_widths == (1, 3)


def test_categories_of_pandas_and_other_spellings(tmp_path: Path) -> None:
    frame = {
        **FRAME,
        "city": ["Oslo", "Oslo ", "Oslo", "Rome", "Oslo", "Rome"],
        "grade": pd.Categorical(["1", "2"] * 3),
    }
    prepared, _ = add(tmp_path, frame, "t.parquet")
    assert prepared.manifest.extra["features"] == ["age", "city=Oslo", "city=Rome", "grade=1", "grade=2"]
    assert prepared.train_x[:, 1].tolist() == [1, 1, 1, 0, 1, 0]


def test_too_many_values_are_left_out_or_refused_by_name(tmp_path: Path) -> None:
    prepared, intake = add(tmp_path, FRAME, max_categories=2)
    assert prepared.manifest.extra["features"] == ["age"]
    assert intake.left_out == {"column of text with more than 2 different values (--max-categories)": {"city": ""}}
    with pytest.raises(DataError, match="column city has 3 different texts, at most 2 become columns"):
        add(tmp_path, FRAME, max_categories=2, features=["*", "city"], force=True)
    with pytest.raises(DataError, match=r"would have one name: city=Oslo"):
        add(tmp_path, {**FRAME, "city=Oslo": [0.5] * 6}, force=True)


def test_missing_values_are_refused_with_the_option(tmp_path: Path) -> None:
    frame = {**FRAME, "age": [1, None, 3, None, 5, 6], "city": ["Oslo", "Rome", "", *CITIES[3:]]}
    with pytest.raises(DataError) as error:
        add(tmp_path, frame)
    assert "missing values in age (2 values, rows 1, 3), city (1 value, row 2): fill them" in str(error.value)
    assert "--missing mean or drop-rows" in str(error.value)
    with pytest.raises(DataError, match="missing is 'median', expected one of refuse, mean, drop-rows"):
        add(tmp_path, frame, missing="median")


def test_missing_values_become_the_mean_of_the_set_also_in_later_rows(tmp_path: Path) -> None:
    frame = {**FRAME, "age": [1, None, 3, None, 5, 6], "city": ["Oslo", "Rome", None, "Rome", "Rome", "Oslo"]}
    prepared, intake = add(tmp_path, frame, missing="mean")
    assert prepared.train_x[:, 0].tolist() == [1, 3.75, 3, 3.75, 5, 6]
    assert prepared.train_x[2].tolist() == pytest.approx([3, 2 / 5, 3 / 5])
    filled = intake.adapted["missing values as the mean of their column"]
    assert filled == {"age": "2 values", "city": "1 value"}
    later, intake = add(tmp_path, {"client": ["a"], "age": [None], "city": ["Rome"]}, "u.csv", append=True)
    assert later.train_x[-1].tolist() == [3.75, 0, 1], "the mean of the set, not of the new rows"
    with pytest.raises(DataError, match="was added with --missing mean"):
        add(tmp_path, FRAME, "v.csv", append=True, missing="refuse")


def test_rows_with_missing_values_are_left_out_and_named(tmp_path: Path) -> None:
    frame = {**FRAME, "age": [1, None, 3, 4, 5, 6], "kind": list("xyxyxy")}
    prepared, intake = add(tmp_path, frame, missing="drop-rows", label_column="kind")
    assert prepared.train_x[:, 0].tolist() == [1, 3, 4, 5, 6]
    assert prepared.train_y is not None
    assert prepared.train_y.tolist() == [0, 0, 1, 0, 1]
    assert prepared.column("client").tolist() == [0, 0, 1, 0, 1]
    assert intake.left_out == {"row with missing values (rows count from 0)": {"t.csv:1": "age"}}
    assert (intake.seen["rows"], intake.taken["rows"]) == (6, 5)
    with pytest.raises(DataError, match="every row of these clients has a missing value: b"):
        add(tmp_path, {**FRAME, "age": [1, None] * 3}, missing="drop-rows", force=True)
    with pytest.raises(DataError, match="every row has a missing value"):
        add(tmp_path, {**FRAME, "age": [1, None] * 3, "size": [None, 2.5] * 3}, missing="drop-rows", force=True)


def test_later_rows_with_another_value_are_refused_in_a_sentence(tmp_path: Path) -> None:
    add(tmp_path, FRAME)
    with pytest.raises(
        DataError, match=r"city: 'Wien' in row 1 is none of the values that the set knows \(Oslo, Paris"
    ):
        add(tmp_path, {"client": ["a", "b"], "age": [1, 2], "city": ["Rome", "Wien"]}, "u.csv", append=True)
    more, intake = add(tmp_path, {"client": ["a"], "age": [9], "city": [" Rome"]}, "u.csv", append=True)
    assert more.train_x[-1].tolist() == [9, 0, 0, 1]
    assert intake.adapted["values of city in another spelling"] == {"' Rome'": "taken as 'Rome'"}


@pytest.mark.parametrize(
    ("names", "scales", "expected"),
    [
        (["e0", "e1", "e2", "e3"], [1, 2, 1, 0.5], EMBEDDING),
        (["pixel_0_0", "pixel_0_1", "pixel_1_0", "pixel_1_1"], [0, 5, 4, 6], EMBEDDING),
        (["0", "1", "2", "3"], [1, 2, 1, 300], MEASUREMENTS),
        (["age", "income", "height", "weight"], [1, 1, 1, 1], MEASUREMENTS),
        (["e0", "e1", "e2", "age"], [1, 1, 1, 1], MEASUREMENTS),
    ],
)
def test_numbered_columns_of_one_scale_are_an_embedding(names: list[str], scales: list[float], expected: str) -> None:
    x = np.random.default_rng(0).normal(size=(200, 4)) * scales
    assert kind_of_columns(TableCoding(tuple(names)), x.astype(np.float32)) == expected


def test_a_set_of_an_earlier_version_holds_numbers_alone() -> None:
    manifest = Manifest("old", "vector", (2,), None, 1, 0, "made", "none", extra={"features": [" a", "b"]})
    coding = coding_of(manifest)
    assert coding == TableCoding(("a", "b"))
    x, kept = encode(pd.DataFrame({"b": [1.5], "a": [2.5]}), coding, Path("t.csv"), Intake())
    assert x.tolist() == [[2.5, 1.5]]
    assert kept.all()
