"""Why MLflow does not have a run: observers get the true reason."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from shoal.core.errors import short_text
from shoal.engine.store.run_events import Event
from shoal.lifecycle.driving import drive
from shoal.lifecycle.starting import new_run
from shoal.review.mlflow_log.tracking import (
    INCOMPLETE,
    TrackingError,
    check_installed,
    reason_of,
)
from tests.engine.store.test_damage import flip

Make = Callable[..., Any]
ON = {"mlflow": True, "model": False}


@pytest.mark.long
def test_a_deleted_experiment_is_the_reason_and_every_observer_hears_it(home: Path, small: Make) -> None:
    drive(new_run(small(rounds=1, tracking=ON)))
    client = MlflowClient(f"sqlite:///{home}/mlflow/mlflow.db")
    experiment = client.get_experiment_by_name("shoal")
    assert experiment is not None
    client.delete_experiment(experiment.experiment_id)
    heard: list[Event] = []
    run = new_run(small(rounds=1, seed=1, tracking=ON))
    assert drive(run, observers=[heard.append]).status == "finished"
    (told,) = [event for event in heard if event.level == "warning"]
    assert told.kind == INCOMPLETE
    assert f"The experiment {experiment.experiment_id} must be in the 'active' state" in told.message
    assert f"`shoal model log {run.name}` logs it" in told.message


def test_a_password_is_masked_before_a_long_reason_is_cut(small: Make) -> None:
    error = MlflowException(f"{'x' * 180} http://me:Tr0ub4dor@host/mlflow did not answer")
    assert len(short_text(error)) == 200
    assert "Tr0u" in short_text(error), "the cut goes through the address"
    assert "Tr0u" not in reason_of(error, small())


def test_a_folder_called_mlflow_is_not_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_installed()
    (tmp_path / "mlflow").mkdir()
    spec = PathFinder.find_spec("mlflow", [str(tmp_path)])
    assert spec is not None, "Python takes the folder for a package"
    for found in (spec, None):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, found=found: found)
        with pytest.raises(TrackingError, match="the package mlflow is not installed here: `pip install mlflow`"):
            check_installed()


@pytest.mark.long
def test_a_damaged_run_is_not_logged(home: Path, small: Make) -> None:
    from typer.testing import CliRunner

    from shoal.cli.main import app

    run = new_run(small(rounds=1, tracking=ON))
    drive(run)
    flip(run.path / "clients.parquet")
    done = CliRunner().invoke(app, ["model", "log", run.name])
    assert done.exit_code == 1
    assert f"{run.name}: not logged: run {run.name}: " in done.stdout
    assert "clients.parquet has been changed or damaged" in done.stdout
