"""Searches of real runs: killed and resumed, refused, tracked; and planted clusters found."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.core.durable import lock_if_free
from shoal.core.errors import ShoalError
from shoal.engine.settings import places
from shoal.engine.settings.merge import merge
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.status import INTERRUPTED
from shoal.review.results.runs import listed_runs
from shoal.sweeps.search.definition import SearchDefinition, SearchError, make_search
from shoal.sweeps.search.result import SearchResult
from shoal.sweeps.search.runner import open_search, run_search
from shoal.sweeps.search.store import LOCK, open_study
from tests.conftest import SMALL

TOY: dict[str, Any] = {
    "name": "toy",
    "settings": merge(SMALL, {"data": {"limit": 60}, "partition": {"clients": 2}}),
    "vary": {"local.lr": {"low": 1e-5, "high": 0.1, "log": True}, "local.batch": {"choices": [16, 32]}},
    "trials": 5,
    "random_trials": 2,
}


@pytest.fixture
def bare(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home in which finished runs are not drawn: what takes longest, and is tested elsewhere."""
    monkeypatch.setattr("shoal.lifecycle.driving.show", lambda *_: None)
    return home


def toy(**changes: Any) -> SearchDefinition:
    return make_search(merge(TOY, changes))


def numbers(result: SearchResult) -> list[Any]:
    """What of a search must be the same however it came about: trials, scores, and the bits of each run."""
    found = []
    for trial in result.trials:
        runs = [RunFolder.find(name) for name in trial.runs]
        bits = [(run.status().state, run.status().round, run.status().weights_sha256) for run in runs]
        found.append((trial.number, trial.state, trial.values, trial.score, trial.scores, bits))
    return found


@pytest.mark.slow
def test_a_search_that_was_killed_in_a_trial_is_the_same_as_a_straight_one(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = toy(trials=3)
    killed = home / "killed"
    killed.mkdir()
    path = killed / "search.yaml"
    path.write_text(json.dumps(definition.model_dump(mode="json", exclude_none=True)))
    env = {**os.environ, "SHOAL_HOME": str(killed)}
    command = [str(Path(sys.executable).with_name("shoal")), "search", str(path)]
    with (killed / "log").open("wb") as log:
        process = subprocess.Popen(command, env=env, cwd=killed, stdout=log, stderr=log, start_new_session=True)
        try:
            until = time.monotonic() + 240
            while not in_second_trial(killed / "runs") and time.monotonic() < until and process.poll() is None:
                time.sleep(0.02)
            assert process.poll() is None, (killed / "log").read_text()
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    monkeypatch.setattr("shoal.lifecycle.driving.show", lambda *_: None)
    monkeypatch.setenv("SHOAL_HOME", str(killed))
    with open_search(definition) as search:
        assert search.left() == range(1, 3)
    begun = {path.name: RunFolder(path) for path in places.runs().iterdir() if path.is_dir()}
    assert len(begun) == 2
    gone_on = run_search(definition)
    assert {name for trial in gone_on.trials[:2] for name in trial.runs} == set(begun)  # the cut one was resumed
    events = [event.kind for event in begun[gone_on.trials[1].runs[0]].events()]
    assert "resumed" in events
    found = numbers(gone_on)

    monkeypatch.setenv("SHOAL_HOME", str(home / "straight"))
    straight = run_search(definition)
    assert numbers(straight) == found
    assert straight.best == gone_on.best


def in_second_trial(runs: Path) -> bool:
    """Whether the second run has done a round and not its last."""
    found = sorted(path for path in runs.glob("*/events.jsonl")) if runs.exists() else []
    return len(found) > 1 and '"round_finished"' in "".join(path.read_text() for path in found[1:])


@pytest.mark.slow
def test_a_search_goes_on_from_wherever_it_was_interrupted(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a run, and before a finished trial is kept."""
    definition = toy(trials=3)
    monkeypatch.setenv("SHOAL_HOME", str(bare / "straight"))
    straight = run_search(definition)
    expected = numbers(straight)

    monkeypatch.setenv("SHOAL_HOME", str(bare / "cut"))
    write = RunFolder.event
    cuts = ["round_finished", "sweep_complete", "round_finished"]

    def cut(run: RunFolder, kind: str, **facts: Any) -> dict[str, Any]:
        entry = write(run, kind, **facts)
        if kind in cuts[:1]:
            del cuts[0]
            raise KeyboardInterrupt
        return entry

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "event", cut)
        while cuts:
            with pytest.raises(KeyboardInterrupt):
                run_search(definition)
    assert numbers(run_search(definition)) == expected


@pytest.mark.long
def test_more_trials_go_on_where_a_search_stood(bare: Path) -> None:
    result = run_search(toy(trials=2))
    page = (places.searches() / "toy" / "search.html").read_text()
    assert f"shoal run {places.searches() / 'toy' / 'best.yaml'}" in page
    assert page.count("data:image/png;base64,") == 2 + ("(fANOVA)" in page)
    more = run_search(toy(trials=3))
    assert numbers(more)[:2] == numbers(result)
    assert len(more.trials) == 3


def test_what_to_install_is_said_where_optuna_is_missing(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SearchError, match=r"needs the package optuna: pip install optuna"):
        run_search(toy())
    assert not (bare / "runs").exists()


@pytest.mark.long
def test_another_definition_under_the_same_name_is_refused(bare: Path) -> None:
    run_search(toy(trials=1))
    with pytest.raises(SearchError, match="exists with another definition, which differs in score, settings: give"):
        run_search(toy(score="acc", settings={"rounds": 2}))
    with (
        lock_if_free(places.searches() / "toy" / LOCK),
        pytest.raises(SearchError, match="search 'toy' is in use by another process"),
    ):
        run_search(toy(trials=1))
    (places.searches() / "toy" / "trials.db").write_bytes(b"no database" * 100)
    with pytest.raises(SearchError, match=r"trials.db of search 'toy' cannot be used .*remove the folder"):
        run_search(toy(trials=1))


@pytest.mark.long
def test_trials_are_runs_on_the_present_version_of_the_set(bare: Path) -> None:
    (before,) = run_search(toy(trials=1)).trials
    run = RunFolder.find(before.runs[0])
    run.set_lineage(data=replace(run.lineage().data, digest="of an earlier version"))
    (after,) = run_search(toy(trials=1, name="other")).trials
    assert after.runs != before.runs
    with pytest.raises(SearchError, match="differs in data: give"), open_study(toy(), "of a later version"):
        pass


def test_a_score_that_no_run_has_is_told(bare: Path) -> None:
    with pytest.raises(ShoalError, match="has no score 'perplexity': set score to one of acc, ari"):
        run_search(toy(score="perplexity", settings={"rounds": 1}))


@pytest.mark.long
def test_settings_that_do_not_go_together_are_a_failed_trial(bare: Path) -> None:
    vary = {"choose.min_clusters": {"choices": [2, 9]}, "choose.max_clusters": {"choices": [5, 12]}}
    definition = make_search({**TOY, "vary": vary, "sampler": "grid", "trials": 4, "settings": {**TOY["settings"]}})
    result = run_search(definition.model_copy(update={"settings": merge(TOY["settings"], {"rounds": 1})}))
    (failed,) = [trial for trial in result.trials if trial.state == "failed"]
    assert failed.values == {"choose.min_clusters": 9, "choose.max_clusters": 5}
    assert "set max_clusters above min_clusters" in failed.why
    assert failed.runs == ()


@pytest.mark.long
def test_planted_clusters_are_counted_by_silhouette(bare: Path) -> None:
    definition = make_search(
        {
            "name": "count",
            "settings": {
                "method": "kmeans",
                "data": {"name": "gaussian", "options": {"clusters": 4, "samples": 30}},
                "partition": {"kind": "iid", "clients": 2},
                "rounds": 1,
                "workers": {"device": "cpu", "slots": 1},
                "tracking": {"mlflow": False, "prefect": "off"},
            },
            "vary": {"model.clusters": {"low": 2, "high": 6}},
            "score": "silhouette",
            "sampler": "grid",
            "seeds": 2,
        }
    )
    result = run_search(definition)
    assert sorted(trial.values["model.clusters"] for trial in result.finished) == [2, 3, 4, 5, 6]  # type: ignore
    assert result.best_trial is not None
    assert result.best_trial.values == {"model.clusters": 4}
    assert all(len(trial.runs) == len(trial.scores) == 2 for trial in result.trials)
    assert result.noise is not None
    assert not result.level_with_best()


@pytest.mark.long
def test_mlflow_has_the_search_with_its_runs_nested(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    tracking = {"mlflow": True, "experiment": "toys", "model": False}
    result = run_search(toy(trials=3, settings={"tracking": tracking, "rounds": 2}))
    client = MlflowClient(f"sqlite:///{bare}/mlflow/mlflow.db")
    experiment = client.get_experiment_by_name("toys")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id])
    (parent,) = [run for run in found if "shoal.search" in run.data.tags]
    children = [run for run in found if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert len(found) == 4
    assert {run.data.tags["shoal.run"] for run in children} == {trial.runs[0] for trial in result.trials}
    assert (parent.info.run_name, parent.info.status) == ("search toy", "FINISHED")
    best = result.best_trial
    assert best is not None
    assert parent.data.metrics["best/score/neighbours"] == best.score
    assert parent.data.metrics["trials/finished"] == result.counts()["finished"]
    assert f"Best: trial {best.number}" in parent.data.tags["mlflow.note.content"]
    assert {"search.html", "trials.csv"} <= {file.path for file in client.list_artifacts(parent.info.run_id)}
    ended = {run.data.tags["shoal.run"]: run.info.status for run in children}
    assert {ended[t.runs[0]] for t in result.trials if t.state == "finished"} == {"FINISHED"}
    assert INTERRUPTED not in {run.state for run in listed_runs(places.runs())}
