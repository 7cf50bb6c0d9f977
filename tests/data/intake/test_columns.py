"""Columns that are no measurements are left out and named; real numbers never are, and float32 keeps what it must."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from shoal.core.errors import DataError
from shoal.data.intake.columns import feature_columns, words
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.prepared import PreparedSet
from tests.added_sets import add_set

N = 60
RNG = np.random.default_rng(0)
REAL = RNG.normal(size=N)
Add = Callable[..., tuple[PreparedSet, Intake]]


@pytest.fixture
def add(tmp_path: Path) -> Add:
    """Add columns beside those of a client and of real numbers."""

    def make(columns: dict[str, Any], suffix: str = ".csv", **options: Any) -> tuple[PreparedSet, Intake]:
        table = pd.DataFrame({"client": ["a", "b"] * (N // 2), "real": REAL, **columns})
        path = tmp_path / f"t{suffix}"
        if suffix == ".csv":
            table.to_csv(path, index=False)
        else:
            table.to_parquet(path, index=False)
        intake = Intake()
        return add_set(path, "mine", tmp_path / "store", intake=intake, force=True, **options), intake

    return make


def kept(prepared: PreparedSet) -> list[str]:
    return list(prepared.manifest.extra["features"])


@pytest.mark.parametrize("name", ["label", "Label", "CLASS", "target", "y", "Y", "cluster", "ground_truth"])
def test_a_label_is_no_feature_whatever_its_values(add: Add, name: str) -> None:
    prepared, intake = add({name: REAL * 2})
    assert kept(prepared) == ["real"]
    assert prepared.train_x.shape == (N, 1)
    assert prepared.train_y is None
    assert intake.left_out == {"column named like a label": {name: ""}}
    assert (intake.seen["columns"], intake.taken["columns"]) == (2, 1)


def test_embeddings_with_a_label_have_as_many_columns_as_embeddings(add: Add) -> None:
    columns = {f"e{k}": RNG.normal(size=N) for k in range(383)}
    prepared, _ = add({**columns, "label": RNG.integers(0, 3, N)})
    assert prepared.train_x.shape == (N, 384)
    prepared, intake = add({**columns, "label": RNG.integers(0, 3, N)}, label_column="label")
    assert prepared.train_x.shape == (N, 384)
    assert prepared.manifest.classes == 3
    assert not intake.left_out


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("id", REAL, "identifier"),
        ("Unnamed: 0", range(N), "identifier"),
        ("Index", range(N), "identifier"),
        ("patientID", REAL, "identifier"),
        ("sample_id", REAL, "identifier"),
        ("fold", [0, 1, 2] * (N // 3), "fold"),
        ("Split", ["train", "test"] * (N // 2), "fold"),
        ("date", [20.5, 30.5] * (N // 2), "date"),
        ("visit_date", ["spring", "autumn"] * (N // 2), "date"),
        ("time", range(N), "date"),
        ("seen", pd.date_range("2024-01-01", periods=N), "of dates|another text"),
        ("seen", [f"{1 + k % 28}.03.2024" for k in range(N)], "text with more than 20 different values"),
        ("same", 5.0, "same value"),
        ("same", True, "same value"),
        ("name", [f"P{k:03}" for k in range(N)], "another text"),
        ("note", [f"n{k % 30}" for k in range(N)], "text with more than 20 different values"),
        ("colour", "red", "same value"),
        ("empty", None, "without any value"),
        ("Species", ["a", "b"] * (N // 2), "named like a label"),
    ],
)
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_columns_that_are_no_measurements(add: Add, name: str, values: Any, reason: str, suffix: str) -> None:
    prepared, intake = add({name: values}, suffix)
    assert kept(prepared) == ["real"]
    assert list(intake.left_out.values()) == [{name: ""}]
    assert re.search(reason, next(iter(intake.left_out)))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("v", np.sort(REAL)),
        ("v", np.arange(N) * 1.5),
        ("v", REAL * 1e9),
        ("v", RNG.permutation(N).astype(float) + 0.25),
        ("v", RNG.integers(0, 20, N)),
        ("v", [True, False] * (N // 2)),
        ("acid", REAL),
        ("yield", REAL),
        ("refractive index", REAL),
        ("classes per week", REAL),
        ("v", RNG.choice(10**6, N, replace=False)),
    ],
)
def test_measurements_stay(add: Add, name: str, values: Any) -> None:
    prepared, intake = add({name: values})
    assert kept(prepared) == ["real", name]
    assert not intake.left_out
    assert np.allclose(prepared.train_x[:, 1], np.asarray(values, dtype=np.float32))


def test_coordinates_and_a_label_y() -> None:
    points = pd.DataFrame({"x": REAL, "y": REAL})
    assert feature_columns(points, Path("t.csv")) == ["x", "y"]
    assert feature_columns(points.assign(y=RNG.integers(0, 3, N)), Path("t.csv")) == ["x"]


def test_few_rows_decide_nothing_and_a_column_must_stay() -> None:
    few = pd.DataFrame({"a": [3, 3, 3], "b": [0, 1, 2]})
    assert feature_columns(few, Path("t.csv")) == ["a", "b"]
    with pytest.raises(
        DataError, match=r"no feature column .*\(label: named like a label\); name the features with --f"
    ):
        feature_columns(pd.DataFrame({"label": REAL}), Path("t.csv"))


def test_whole_numbers_that_may_be_identifiers_are_said(add: Add) -> None:
    prepared, intake = add({"v": RNG.choice(10**6, N, replace=False)})
    assert kept(prepared) == ["real", "v"]
    assert intake.noted["column with another whole number in every row, taken as a measurement"] == {"v": ""}


def test_features_that_are_named(add: Add) -> None:
    columns = {"label": RNG.integers(0, 3, N), "other": REAL * 3, "a,b": REAL * 2}
    assert kept(add(columns, features=["label,real"])[0]) == ["real", "label"]
    assert kept(add(columns, features=["a,b", " label"])[0]) == ["label", "a,b"]
    prepared, intake = add(columns, features=["*", "label"])
    assert kept(prepared) == ["real", "label", "other", "a,b"]
    assert not intake.left_out
    _, intake = add(columns, features=["real"])
    assert intake.left_out == {"column not named by --features": {"label": "", "other": "", "a,b": ""}}
    with pytest.raises(DataError, match=r"--features names Label, client, and .* it has real, label, other, a,b"):
        add(columns, features=["Label,client"])
    with pytest.raises(DataError, match=r"day: datetime64.* is not a number"):
        add({"day": pd.date_range("2024", periods=N)}, ".parquet", features=["day"])


def test_rows_that_are_appended_have_the_columns_of_the_set(tmp_path: Path) -> None:
    frame = {"client": ["a", "b"] * (N // 2), "real": REAL, "same": 1, "label": 0}
    pd.DataFrame(frame).to_csv(tmp_path / "may.csv", index=False)
    add_set(tmp_path / "may.csv", "mine", tmp_path, features=["real", "label"])
    # One row: neither of these looks like what it looked like before.
    pd.DataFrame({"label": 1, "same": [7], "client": ["a "], " real": [2.5]}).to_csv(tmp_path / "june.csv", index=False)
    intake = Intake()
    more = add_set(tmp_path / "june.csv", "mine", tmp_path, append=True, intake=intake)
    assert more.train_x[-1].tolist() == [2.5, 1]
    assert more.manifest.extra["clients"] == ["a", "b"]
    assert intake.left_out == {"column that the set does not have": {"same": ""}}
    assert intake.adapted == {
        "columns in another spelling": {"' real'": "taken as 'real'"},
        "clients in another spelling": {"'a '": "taken as 'a'"},
    }


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (1_700_000_000 + RNG.integers(0, 30, N), "t: float32 cannot tell its values apart"),
        (2**60 + RNG.integers(0, 100, N), "t: float32 cannot tell its values apart"),
        ([16_777_216, 16_777_217] * (N // 2), "leave the column out if it is an identifier or a time"),
        ([f"{k + 1},500" for k in range(N)], r"t: not a number \('1,500'\).* without thousands separators"),
        ([f"{k},5" for k in range(N)], "with a point"),
        ([f"{k} kg" for k in range(N)], r"t: not a number \('0 kg'\)"),
        ([*range(N - 1), "none yet"], r"t: not a number \('none yet'\) in row 59"),
        ([1.5, np.inf] * (N // 2), "t: NaN or infinite in rows 1, 3"),
        ([1.5, None] * (N // 2), r"missing values in t \(30 values, rows 1, 3, .*--missing mean or drop-rows"),
        ([True, None] * (N // 2), r"missing values in t \(30 values, rows 1, 3"),
    ],
)
def test_what_is_no_number_is_refused_in_a_sentence(add: Add, values: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        add({"t": values})


def test_a_day_of_seconds_is_taken_and_said(add: Add) -> None:
    prepared, intake = add({"second": 1_700_000_000 + RNG.integers(0, 86400, N)})
    assert kept(prepared) == ["real", "second"]
    assert list(intake.adapted["column rounded to float32"]) == ["second"]
    assert "% of its standard deviation" in intake.adapted["column rounded to float32"]["second"]


def test_true_and_false_are_said(add: Add) -> None:
    prepared, intake = add({"member": [True, False] * (N // 2)})
    assert prepared.train_x[:2, 1].tolist() == [1, 0]
    assert intake.adapted == {"column of true and false as 1 and 0": {"member": ""}}


def test_words_of_names() -> None:
    assert words("__index_level_0__") == ["index", "level", "0"]
    assert words("ID") == ["id"]
    assert words("Größe(cm)") == ["grösse", "cm"]
