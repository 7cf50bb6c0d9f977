"""The parts of `make chaos-clusters` that need no cluster: its tries are planned well, and what is wrong counts."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.engine.store.run_events import Event
from tests.chaos import on_clusters
from tests.chaos.cluster_events import EVENTS
from tests.chaos.cluster_tally import BY_ITSELF, STOPPED, ClusterOutcome, markdown, outcomes_in, summary, write
from tests.chaos.cluster_trial import longest_silence
from tests.chaos.clusters import KINDS
from tests.chaos.on_clusters import attempt, planned
from tests.sources import ROOT

WELL = ClusterOutcome("scheduler killed", "dask", "fedpnp", "round 1, 0 of 3 clients done", 31.4, STOPPED, True)


def test_six_tries_are_of_every_event_on_every_runner_that_it_is_for() -> None:
    tries = planned(6, 0)
    assert len(tries) == 6
    assert tries == planned(6, 0)
    assert tries != planned(6, 1)
    assert Counter(tries) == {what: share for what, (share, _) in EVENTS.items()}
    assert {runner for _, runner in tries} == KINDS.keys()
    assert len(planned(3, 0)) == 3
    assert Counter(planned(12, 0)) == {what: 2 * share for what, (share, _) in EVENTS.items()}


@pytest.mark.parametrize("what", EVENTS, ids=" on ".join)
def test_every_event_says_what_happens(what: tuple[str, str]) -> None:
    assert EVENTS[what][1].__doc__


@pytest.mark.parametrize(
    "wrong",
    [
        {"same": False},
        {"seconds": 60.1},
        {"ended": "exit code 1, running"},
        {"hung": True},
        {"traceback": True},
        {"left": 1},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_try_with_anything_wrong_is_wrong(wrong: dict[str, Any]) -> None:
    assert WELL.right
    assert replace(WELL, ended=BY_ITSELF).right
    assert not replace(WELL, **wrong).right


def test_what_was_wrong_is_shown_and_counted(tmp_path: Path) -> None:
    bits = replace(WELL, event="all hosts killed", same=False, left=2)
    late = replace(WELL, seconds=61.0, ended=BY_ITSELF)
    hung = replace(WELL, event="scheduler stopped", seconds=240.0, ended="exit code None, running", hung=True)
    assert markdown([WELL, bits, late, hung]).splitlines()[2:] == [
        "| all hosts killed | round 1, 0 of 3 clients done | 31 | WRONG: stopped, resumable | NO |",
        "| scheduler killed | round 1, 0 of 3 clients done | 31 | stopped, resumable | yes |",
        "| scheduler killed | round 1, 0 of 3 clients done | 61 | WRONG: went on by itself | yes |",
        "| scheduler stopped | round 1, 0 of 3 clients done | 240 | WRONG: exit code None, running | yes |",
    ]
    counts = {"tries": 4, "right": 1, BY_ITSELF: 1, STOPPED: 2, "same bits": 3, "hangs": 1}
    counts |= {"longer than 60 s": 2, "tracebacks": 0, "processes left": 2}
    assert summary([WELL, bits, late, hung]) == counts
    write([WELL, hung], tmp_path / "there", 7, 125.0, {"timeout": 0.5})
    said = (tmp_path / "there" / "clusters.md").read_text()
    assert "Seed 7, 2 minutes, on 20" in said
    assert "workers.timeout=0.5" in said
    kept = json.loads((tmp_path / "there" / "clusters.json").read_text())
    assert [each["right"] for each in kept["tries"]] == [True, False]
    assert kept["summary"]["hangs"] == 1
    assert outcomes_in(tmp_path / "there" / "clusters.json") == [WELL, hung]


def test_the_counts_in_the_documentation_are_those_of_the_run() -> None:
    outcomes = outcomes_in(ROOT / "docs" / "chaos-clusters.json")
    page = (ROOT / "docs" / "reliability.md").read_text()
    counts = summary(outcomes)
    assert f"{counts['tries']} tries" in page
    assert f"{counts['same bits']} to the same bits" in page


def test_a_try_that_cannot_be_carried_out_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no such part")

    monkeypatch.setattr(on_clusters, "ClusterTrial", broken)
    outcome = attempt(type("", (), {"seed": 1})(), 1, "scheduler killed", "dask")  # type: ignore[arg-type]
    assert not outcome.right
    assert "no such part" in outcome.note


def test_silence_is_measured_from_the_event_to_the_end() -> None:
    kinds = ("round_started", "client_finished", "client_finished", "slot_lost", "round_finished", "finished")
    events = [Event(kind, time=10.0 * number) for number, kind in enumerate(kinds)]
    assert longest_silence(events, 12.0, 55.0) == 20.0  # a lost worker is no progress
    assert longest_silence(events, 12.0, 80.0) == 30.0
    assert longest_silence(events, 51.0, 53.0) == 2.0
