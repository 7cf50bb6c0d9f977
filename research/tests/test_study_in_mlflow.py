"""A study as a parent run of MLflow's, on a real SQLite store."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from shoal.engine.settings import places
from shoal.engine.store.run_folder import RunFolder
from shoal_research import runner
from shoal_research.definition import make_study
from shoal_research.runner import run_study

STUDY = {
    "name": "toy",
    "title": "a toy",
    "paper": "none",
    "metrics": ["acc"],
    "percent": False,
    "settings": {
        "rounds": 1,
        "method": "kmeans",
        "data": {"name": "digits", "limit": 200},
        "partition": {"kind": "iid", "clients": 2},
        "tracking": {"experiment": "toys", "model": False, "prefect": "off"},
    },
    "rows": {"floor": {"caption": "Floor"}},
    "columns": {"all": {"caption": "All"}},
    "scales": {"cpu": {"about": "A test.", "seeds": 1}},
    "claims": [{"claim": "it is better than nothing", "left": ["floor", "all", "acc"], "op": ">", "right": 0}],
}


@pytest.fixture
def toy(home: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    """The store of a home in which this is the study that is run."""
    study = make_study(STUDY, "toys", "studies/toys/toy.yaml")
    monkeypatch.setattr(runner, "load_study", lambda name: study)
    return MlflowClient(f"sqlite:///{home}/mlflow/mlflow.db")


def rows_of(client: MlflowClient) -> tuple[list[Any], list[Any]]:
    """The runs of the experiment: parents, and those nested under one."""
    experiment = client.get_experiment_by_name("toys")
    found = client.search_runs([experiment.experiment_id])
    children = [run for run in found if "mlflow.parentRunId" in run.data.tags]
    return [run for run in found if run not in children], children


def test_a_study_is_a_parent_run_with_its_runs_nested(toy: MlflowClient, caplog: pytest.LogCaptureFixture) -> None:
    result = run_study("toy", "cpu")
    ((parent,), (child,)) = rows_of(toy)
    assert parent.info.run_name == "study toy at scale cpu"
    assert parent.info.status == "FINISHED"
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert child.data.tags["shoal.run"] == result.runs[0]
    assert parent.data.metrics["score/acc/floor/all"] == result.rows[0].mean == child.data.metrics["score/acc"]
    assert sum(value for name, value in parent.data.metrics.items() if name.startswith("claims/")) == 1
    note = parent.data.tags["mlflow.note.content"]
    assert note.startswith("A toy (none). A test.")
    assert "| Floor |" in note
    assert "it is better than nothing: **" in note
    paths = {artifact.path for artifact in toy.list_artifacts(parent.info.run_id)}
    assert {"result.json", "table.csv"} <= paths

    # A run that lost its parent is nested again; nothing is there twice.
    toy.delete_tag(child.info.run_id, "mlflow.parentRunId")
    assert run_study("toy", "cpu", gather=True).runs == result.runs
    ((again,), (nested,)) = rows_of(toy)
    assert (again.info.run_id, nested.info.run_id) == (parent.info.run_id, child.info.run_id)
    assert len(toy.get_metric_history(again.info.run_id, "score/acc/floor/all")) == 1

    # With the store lost the result is put together all the same, under a new parent that the run will have.
    with sqlite3.connect(places.mlflow_store() / "mlflow.db") as store:
        store.execute("drop table alembic_version")
    assert run_study("toy", "cpu", gather=True).runs == result.runs
    run = RunFolder.find(result.runs[0], places.runs())
    ((parent,), ()) = rows_of(toy)
    assert run.status().tracking.mlflow_parent == parent.info.run_id
    assert not [record for record in caplog.records if record.name == "shoal.review.mlflow_log.parent"]


def test_mlflow_out_of_reach_never_stops_a_study(
    toy: MlflowClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert run_study("toy", "cpu").rows[0].mean > 0
    (said,) = [record.getMessage() for record in caplog.records if record.name == "shoal.review.mlflow_log.parent"]
    assert said.startswith("MLflow at http://127.0.0.1:9 does not have study toy at scale cpu (")
