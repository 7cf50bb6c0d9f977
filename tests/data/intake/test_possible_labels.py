"""A label that nobody named stays a feature, and is named with its values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_wine

from shoal.data.intake.own import add_table
from shoal.data.intake.possible_labels import possible_label_words
from shoal.data.sets.prepared import Prepared


def add(folder: Path, frame: pd.DataFrame, **options: Any) -> Prepared:
    folder.mkdir(exist_ok=True)
    frame.to_parquet(folder / "t.parquet")
    return add_table(folder / "t.parquet", "mine", folder / "s", **options)


def test_the_cultivar_of_wine(tmp_path: Path) -> None:
    wine = load_wine(as_frame=True).frame.rename(columns={"target": "cultivar"})
    wine["client"] = np.arange(len(wine)) % 3
    made = add(tmp_path / "a", wine).manifest
    assert "cultivar" in made.extra["features"]
    assert made.extra["possible_labels"] == [["cultivar", ["0", "1", "2"]]]
    assert possible_label_words(made.extra) == (
        "cultivar (0, 1, 2) is a feature; if it is the label, add the set again with --label-column cultivar --force"
    )
    for name, options in (("b", {"label_column": "cultivar"}), ("c", {"features": ["*"]})):
        assert "possible_labels" not in add(tmp_path / name, wine, **options).manifest.extra


@pytest.mark.parametrize(
    ("values", "possible"),
    [
        (["calm", "storm"] * 10, ["calm", "storm"]),
        ([True, False] * 10, ["False", "True"]),
        ([10.0, 2.0] * 10, ["2", "10"]),
        ([1.5, 2.0] * 10, None),
        (list(range(11)) + [0] * 9, None),
        (pd.Categorical(["a", "b"] * 10), ["a", "b"]),
    ],
)
def test_whole_numbers_and_words_of_few_values(tmp_path: Path, values: Any, possible: list[str] | None) -> None:
    frame = pd.DataFrame({"client": ["a", "b"] * 10, "v": np.arange(20) * 1.5, "q1": [0, 1] * 10, "q2": [1, 0] * 10})
    made = add(tmp_path, frame.assign(**{"the kind": values})).manifest
    assert made.extra.get("possible_labels") == (possible and [["the kind", possible]])
    if possible:
        assert possible_label_words(made.extra).endswith("--label-column 'the kind' --force")


def test_several_columns_and_windows(tmp_path: Path) -> None:
    frame = pd.DataFrame({"client": ["a", "b"] * 20, "time": np.repeat(np.arange(20), 2), "sex": [0, 1, 1, 0] * 10})
    frame = frame.assign(v=np.arange(40) * 1.5, grade=np.arange(40) % 3)
    made = add(tmp_path, frame, window="4").manifest
    assert made.kind == "series"
    words = possible_label_words(made.extra)
    assert words.startswith("grade (0, 1, 2), sex (0, 1) are features; if one of them is the label, add the set again")
