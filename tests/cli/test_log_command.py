"""`shoal model log`: what MLflow lacks of finished runs is brought there, and said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from typer.testing import CliRunner

from shoal.cli.main import app
from shoal.core.errors import ShoalError
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.driving import drive
from shoal.lifecycle.starting import new_run
from tests.runs import stopped


def log(*words: str) -> str:
    done = CliRunner().invoke(app, ["model", "log", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def unreached(run: RunFolder) -> int:
    return sum(event.kind == "mlflow_incomplete" for event in run.events())


@pytest.mark.long
def test_runs_go_to_the_store_of_the_variable(
    home: Path, small: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    on = {"mlflow": True, "model": False}
    first, second = (new_run(small(rounds=1, seed=seed, tracking=on)) for seed in (0, 1))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    for run in (first, second):
        drive(run)
    cut = stopped(small(rounds=2, tracking=on), "round_finished", 1)
    with pytest.raises(ShoalError, match="MLflow lacks 2 of them: the same command"):
        log()
    assert unreached(first) == 1

    new = f"sqlite:///{tmp_path / 'other' / 'other.db'}"
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", new)
    lines = log().splitlines()
    assert lines == [
        f"{first.name}: logged to {new}",
        f"{second.name}: logged to {new}",
    ]
    assert log().splitlines() == lines, "once more, and nothing is new"
    client = MlflowClient(new)
    for run in (first, second):
        found = client.get_run(run.status().tracking.mlflow_run)
        assert found.data.metrics["score/acc"] == run.table("rounds")["acc"].iloc[-1]
    assert "not finished: resume it with `shoal run --resume`" in log(cut.name)
