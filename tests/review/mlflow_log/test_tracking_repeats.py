"""Syncs that are repeated, interrupted and resumed, on a real SQLite store: nothing twice, nothing missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from shoal.engine.settings import places
from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import Settings, flatten, make_settings
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.driving import drive
from shoal.lifecycle.starting import new_run
from shoal.review.mlflow_log import rounds as mlflow_rounds
from shoal.review.mlflow_log.experiments import NOTE, VIEW_TAG
from shoal.review.mlflow_log.models import is_ready, models_of
from shoal.review.mlflow_log.run import MAX_PARAMETER_CHARACTERS
from shoal.review.mlflow_log.run_names import title
from shoal.review.mlflow_log.tracking import sync
from shoal.review.results.result import run_result
from tests.conftest import SMALL
from tests.runs import go_on, stopped

pytestmark = pytest.mark.long

WRITING = (
    "create_experiment",
    "create_run",
    "log_batch",
    "log_inputs",
    "create_logged_model",
    "log_outputs",
    "log_model_artifacts",
    "finalize_logged_model",
    "log_artifact",
    "log_artifacts",
    "log_text",
    "set_tag",
    "set_terminated",
)
"""What a sync calls that changes the store."""


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunFolder]:
    """A finished run of two rounds that is not in MLflow."""
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("repeats")
        patch.setenv("SHOAL_HOME", str(home))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.chdir(home)
        made = new_run(make_settings(merge(SMALL, {"rounds": 2})))
        drive(made)
        yield made


@pytest.fixture
def client(run: RunFolder) -> MlflowClient:
    return MlflowClient(f"sqlite:///{places.mlflow_store()}/mlflow.db")


def logged(run: RunFolder, experiment: str, **tracking: Any) -> Settings:
    """The run's settings with MLflow on, and the run as if it had never been logged."""
    own = {"mlflow": True, "model": False, "experiment": experiment, "checkpoints": "all", **tracking}
    run.set_tracking(mlflow_run=None)
    return make_settings(merge(run.settings().to_json(), {"tracking": own}))


def everything(client: MlflowClient, experiment: str) -> dict[str, Any]:
    """What a store has of an experiment, without ids and times of the store's own."""
    about = client.get_experiment_by_name(experiment)
    (found,) = client.search_runs([about.experiment_id])
    run_id = found.info.run_id
    models = models_of(client, found)
    assert len(models) == len(client.search_logged_models([about.experiment_id])), "a model is there twice"
    return {
        "experiment": sorted(about.tags),
        "params": {key: value for key, value in found.data.params.items() if key != "tracking.experiment"},
        "tags": sorted(found.data.tags),
        "state": (found.info.status, found.info.start_time, found.info.end_time, found.info.run_name),
        "data": sorted(given.dataset.digest for given in found.inputs.dataset_inputs),
        "metrics": {
            name: [(m.step, m.value, m.timestamp) for m in client.get_metric_history(run_id, name)]
            for name in sorted(found.data.metrics)
        },
        "models": {
            name: (
                is_ready(model),
                sorted((m.key, m.step, m.value, m.dataset_digest) for m in model.metrics),
                sorted(each.path for each in client.list_logged_model_artifacts(model.model_id)),
            )
            for name, model in sorted(models.items())
        },
        "steps": sorted(output.step for output in found.outputs.model_outputs),
        "files": sorted(
            path.relative_to(folder).as_posix()
            for folder in [Path(found.info.artifact_uri.removeprefix("file://"))]
            for path in folder.rglob("*")
            if path.is_file()
        ),
    }


def killed_after(patch: pytest.MonkeyPatch, count: int) -> list[str]:
    """Have the process killed after so many writing calls; of the last one's batch the tags are not written."""
    calls: list[str] = []

    def watched(name: str) -> Callable[..., Any]:
        whole = getattr(MlflowClient, name)

        def call(self: Any, *words: Any, **named: Any) -> Any:
            calls.append(name)
            last = len(calls) == count
            if last and named.get("metrics"):
                named.pop("tags", None)
            answer = whole(self, *words, **named)
            if last:
                raise Killed
            return answer

        return call

    for name in WRITING:
        patch.setattr(MlflowClient, name, watched(name))
    return calls


def test_a_kill_after_any_call_leaves_nothing_twice_and_nothing_missing(
    run: RunFolder, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = logged(run, "straight")
    with monkeypatch.context() as patch:
        calls = killed_after(patch, 0)
        sync(run, settings)
    wanted = everything(client, "straight")
    assert list(wanted["models"]) == ["round-0001", "round-0002"]
    assert wanted["steps"] == [1, 2]
    assert all(len(points) in (1, 2) for points in wanted["metrics"].values())
    sync(run, settings)
    assert everything(client, "straight") == wanted
    # Of equal calls in a row the first: what follows one is the same.
    tried = [count for count, name in enumerate(calls, 1) if count == 1 or calls[count - 2] != name]
    assert len(tried) > 15
    for count in tried:
        name = f"killed-{count}"
        settings = logged(run, name)
        with monkeypatch.context() as patch:
            killed_after(patch, count)
            with pytest.raises(Killed):
                sync(run, settings)
        sync(run, settings)
        assert everything(client, name) == wanted, (count, calls[count - 1])


def test_a_final_model_that_a_kill_cut_short_is_completed(
    run: RunFolder, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = logged(run, "final", model=True, checkpoints="none")
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "finalize_logged_model", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            sync(run, settings)
    assert not everything(client, "final")["models"]["model"][0]
    sync(run, settings)
    found = everything(client, "final")
    assert list(found["models"]) == ["model"]
    assert found["models"]["model"][0]
    assert "MLmodel" in found["models"]["model"][2]


def test_a_sync_costs_what_is_new(home: Path, small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    whole = mlflow_rounds.load_manifest

    def counted(run: RunFolder, round: int) -> Any:
        read.append(round)
        return whole(run, round)

    monkeypatch.setattr(mlflow_rounds, "load_manifest", counted)
    monkeypatch.setattr(MlflowClient, "get_metric_history", lambda *_: pytest.fail("a history was asked for"))
    run = stopped(small(rounds=4, data={"limit": 80}), "round_finished", 2)
    tables = RunFolder.table
    settings = logged(run, "shoal")

    def synced() -> list[int]:
        read.clear()
        with monkeypatch.context() as patch:
            patch.setattr(RunFolder, "table", lambda *_: pytest.fail("a table was read"))
            sync(run, settings, "RUNNING")
        return list(read)

    assert synced() == [0, 1, 2], "the first one also looks up when the run began"
    assert synced() == []
    go_on(run)
    assert synced() == [3, 4]
    assert synced() == []
    assert RunFolder.table is tables


def test_no_setting_is_cut_off(run: RunFolder, client: MlflowClient) -> None:
    rounds = list(range(1, 2000))
    long = {
        "method": {"name": "cfl", "criterion": "schedule", "schedule": rounds},
        "data": {"options": {f"kind {number}": number for number in range(60)}},
    }
    settings = make_settings(merge(logged(run, "long").to_json(), long))
    run_id = sync(run, settings, "RUNNING")
    found = client.get_run(run_id)
    assert found.data.params.keys() == flatten(settings).keys()
    assert len(found.data.params) > 100, "more than one call takes"
    assert len(str(rounds)) > MAX_PARAMETER_CHARACTERS
    said = f"{len(str(rounds))} characters: see method.schedule in settings.yaml"
    assert found.data.params["method.schedule"] == said


def test_what_a_person_wrote_stays(run: RunFolder, client: MlflowClient) -> None:
    settings = logged(run, "words")
    ours = sync(run, settings)
    note = client.get_run(ours).data.tags[NOTE]
    verdict = run_result(run).verdict
    assert note.startswith(f"**Verdict: {verdict.word}.** {verdict.reason}\n\n**[Open the report](")
    assert "fedpnp learns from digits without labels, in " in note
    assert "It finished after 2 rounds: " in note
    experiment = client.get_experiment_by_name("words")
    assert f"(#/experiments/{experiment.experiment_id}/runs/{ours}/artifacts/Report.html)" in note
    assert {"mlflow.experimentKind", VIEW_TAG} <= experiment.tags.keys()
    client.set_tag(ours, NOTE, "Looks good.")
    client.set_experiment_tag(experiment.experiment_id, NOTE, "Ours.")
    (run.path / "events.jsonl").open("a").write("\n")
    assert sync(run, settings) == ours
    assert sync(run, logged(run, "words", clients=True)) == ours, "found again by its folder"
    assert client.get_run(ours).data.tags[NOTE] == "Looks good."
    client.set_tag(ours, NOTE, "")
    sync(run, settings)
    assert client.get_run(ours).data.tags[NOTE] == note
    assert client.get_experiment_by_name("words").tags[NOTE] == "Ours."


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"partition": {"kind": "dirichlet", "clients": 5}}, "fedpnp digits dirichlet(0.5) x5 seed 0"),
        ({"partition": {"kind": "labels_per_client"}, "seed": 3}, "fedpnp digits labels_per_client(2) x5 seed 3"),
        ({"partition": {"kind": "by_column"}, "method": "fedcc"}, "fedcc digits by_column(client) seed 0"),
        ({"partition": {"kind": "auto"}}, "fedpnp digits auto seed 0"),
    ],
)
def test_a_run_is_named_for_people(changes: dict[str, Any], name: str) -> None:
    assert title(make_settings({"method": "fedpnp", **changes})) == name
