"""What the CF-CL studies derive from finished runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from engine.run_folder import RunFolder
from studies.cfcl import derive as cfcl
from tests.engine.test_every_method_runs import CASES
from tests.runs import straight

Groups = dict[tuple[str, str], list[RunFolder]]


@pytest.fixture
def groups(home: Path, small: Callable[..., Any]) -> Groups:
    """One short run of each selection."""
    case = CASES["cfcl"]
    return {
        (row, "2 labels"): [straight(small(**{**case, "method": {**case["method"], "selection": selection}}))]
        for row, selection in (("FedAvg", "none"), ("uniform", "uniform"), ("CF-CL", "cfcl"))
    }


def test_figures_and_tables_are_of_the_runs(groups: Groups, tmp_path: Path) -> None:
    (column,) = {column for _, column in groups}
    variance = {row["row"]: row["mean"] for row in cfcl.labels_over_rounds({}, groups, tmp_path)}
    for (row, _), (run,) in groups.items():
        assert variance[row] == pytest.approx(run.table("rounds")["label_variance"].mean())
    assert variance["FedAvg"] > variance["uniform"], "what is pulled is of other labels, most of it"
    moved = {row["row"]: row["mean"] for row in cfcl.traffic({}, groups, tmp_path)}
    assert moved["FedAvg"] == 0 < moved["uniform"] < moved["CF-CL"], "CF-CL also pushes reserves"
    cfcl.convergence({}, groups, tmp_path)
    cfcl.embeddings({}, groups, tmp_path)
    assert len(pd.read_csv(tmp_path / "exchange.csv")) == len(cfcl.exchange_table(groups["CF-CL", column][0]))
    for name in ("convergence", "graph", "label-variance", "labels-cf-cl", "embeddings"):
        assert (tmp_path / f"{name}.png").stat().st_size > 5000, name


def test_steps_and_delay_until_uniforms_final_accuracy(
    groups: Groups, small: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uniform ends at 0.7: it reached that after 20 steps, CF-CL after 10, FedAvg never. Pulled negatives: at 0.8."""
    column, case = "2 labels", CASES["cfcl"]
    for row, selection in (("uniform, pulled negatives", "uniform"), ("CF-CL, pulled negatives", "cfcl")):
        method = {**case["method"], "selection": selection, "negatives": "pulled"}
        groups[row, column] = [straight(small(**{**case, "method": method}))]
    probes = {
        "FedAvg": [0.5, 0.6, 0.6],
        "uniform": [0.6, 0.7, 0.7],
        "CF-CL": [0.7, 0.6, 0.7],
        "uniform, pulled negatives": [0.7, 0.7, 0.8],
        "CF-CL, pulled negatives": [0.7, 0.9, 0.9],
    }
    by_run = {runs[0].name: probes[row] for (row, _), runs in groups.items()}
    monkeypatch.setattr(
        cfcl,
        "curve",
        lambda run: pd.DataFrame({"step": [10, 20, 30], "probe": by_run[run.name], "delay": [1.0, 2.0, 3.0]}),
    )
    monkeypatch.setattr(cfcl, "run_result", lambda run: SimpleNamespace(metrics={"probe": by_run[run.name][-1]}))
    rows = cfcl.convergence({}, groups, tmp_path)
    found = {(row["row"], row["metric"]): row["mean"] for row in rows}
    for row in probes:  # of one seed the mean is the seed
        for what in ("steps", "delay"):
            assert found.pop((row, f"curve_{what}_to_uniform"), None) == found.get((row, f"{what}_to_uniform"))
    means = {row: found.pop((row, "probe_over_steps")) for row in probes}
    assert means == pytest.approx({row: sum(values) / 3 for row, values in probes.items()})
    assert found == {
        ("uniform", "steps_to_uniform"): 20,
        ("uniform", "delay_to_uniform"): 2.0,
        ("CF-CL", "steps_to_uniform"): 10,
        ("CF-CL", "delay_to_uniform"): 1.0,
        ("uniform, pulled negatives", "steps_to_uniform"): 30,
        ("uniform, pulled negatives", "delay_to_uniform"): 3.0,
        ("CF-CL, pulled negatives", "steps_to_uniform"): 20,
        ("CF-CL, pulled negatives", "delay_to_uniform"): 2.0,
    }


def test_mean_curve_is_over_seeds(groups: Groups, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uniform ends at 0.7, the mean of two seeds: one is there after 20 steps, the other never, their mean after 30."""
    (one,), (other,) = groups["uniform", "2 labels"], groups["FedAvg", "2 labels"]
    probes = {one.name: [0.6, 0.7, 0.8], other.name: [0.4, 0.5, 0.6]}
    monkeypatch.setattr(
        cfcl,
        "curve",
        lambda run: pd.DataFrame({"step": [10, 20, 30], "probe": probes[run.name], "delay": [1.0, 2.0, 3.0]}),
    )
    monkeypatch.setattr(cfcl, "run_result", lambda run: SimpleNamespace(metrics={"probe": probes[run.name][-1]}))
    rows = {row["metric"]: row for row in cfcl.convergence({}, {("uniform", "2 labels"): [one, other]}, tmp_path)}
    assert (rows["steps_to_uniform"]["mean"], rows["steps_to_uniform"]["seeds"]) == (20, 1)
    assert (rows["curve_steps_to_uniform"]["mean"], rows["curve_delay_to_uniform"]["mean"]) == (30, 3.0)
