"""Tables of rounds that are kept beside a result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from shoal_research import kept_rounds
from shoal_research.definition import StudyError
from shoal_research.kept_rounds import keep_rounds, rounds_file, rounds_of_cells
from tests.runs import straight


def rounds(row: str, values: list[float]) -> pd.DataFrame:
    """Return the rounds of a row."""
    return pd.DataFrame(
        {"row": row, "column": "x", "seed": 0, "round": range(1, len(values) + 1), "acc": values},
    )


def test_every_evaluated_round_of_every_run_is_kept(home: Path, small: Callable[..., Any]) -> None:
    run = straight(small(method="fedcc", rounds=3, evaluate={"every": 2}))
    cell = {"row": "a", "column": "x", "seed": 4, "run": run.name}
    found = rounds_of_cells([cell], ["acc", "no_such_metric"])
    assert list(found.columns[:5]) == ["row", "column", "seed", "round", "acc"]
    expected = run.table("rounds").dropna(subset=["acc"])
    assert found["round"].tolist() == expected["round"].tolist()
    assert found["acc"].tolist() == expected["acc"].tolist()


def test_rounds_of_cells_that_stay_are_preserved(tmp_path: Path) -> None:
    result = tmp_path / "toy-cpu.json"
    keep_rounds(result, pd.concat([rounds("a", [0.1, 0.2]), rounds("b", [0.3])]), [])
    keep_rounds(result, rounds("a", [0.5]), ["b/x"])
    kept = pd.read_csv(rounds_file(result))
    assert kept[["row", "acc"]].values.tolist() == [["b", 0.3], ["a", 0.5]]
    first = rounds_file(result).read_bytes()
    keep_rounds(result, rounds("a", [0.5]), ["b/x"])
    assert rounds_file(result).read_bytes() == first, "the same rounds are the same file"


def test_a_table_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_rounds, "MAX_BYTES", 50)
    with pytest.raises(StudyError, match="at most 50 are kept: evaluate less often"):
        keep_rounds(tmp_path / "toy-cpu.json", rounds("a", [0.1] * 100), [])
