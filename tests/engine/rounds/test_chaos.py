"""The short version of `make chaos`: some runs that are killed, stopped and starved come to the same bits."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.chaos.__main__ import attempt, planned
from tests.chaos.events import EVENTS
from tests.chaos.tally import Outcome, markdown, write
from tests.chaos.trial import chaos_in, methods, settings_of

pytestmark = pytest.mark.long

SHORT = (  # test_loop.py kills driver and workers, test_timeout.py stops workers, test_moved_home.py moves the home
    ("driver killed, workers go on", "cfcl"),
    ("disk full", "fedavg"),
    ("two drivers on one run", "kfed"),
)


def test_whatever_happens_a_run_comes_to_the_same_bits(home: Path, tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path), chaos_in(home, seed=1) as chaos:
        outcomes = [attempt(chaos, number, event, method) for number, (event, method) in enumerate(SHORT)]
    wrong = [outcome for outcome in outcomes if not outcome.same or outcome.traceback]
    assert not wrong, "\n".join(f"{each.event}, {each.method}: {each.note}" for each in wrong)


def test_the_long_version_has_every_event_and_every_method() -> None:
    tries = planned(300, 0, methods())
    assert len(tries) == 300
    assert tries == planned(300, 0, methods())
    assert {event for event, _ in tries} == EVENTS.keys()
    assert sum(share for share, _ in EVENTS.values()) == 100
    for event, (share, _) in EVENTS.items():
        assert sum(each == event for each, _ in tries) == 3 * share
    for method in methods():
        # In turns: none comes twice more than another.
        assert 0 <= sum(each == method for _, each in tries) - 300 // len(methods()) <= 1
    assert len(planned(7, 1, ["kmeans"])) == 7


@pytest.mark.parametrize("method", methods())
def test_every_method_has_settings_for_a_try(method: str) -> None:
    assert settings_of(method).method.name == method


def test_what_was_wrong_is_counted(tmp_path: Path) -> None:
    outcomes = [Outcome("a", "m", True), Outcome("a", "m", False, hung=True), Outcome("b", "m", True, traceback=True)]
    assert markdown(outcomes).splitlines()[2:] == [
        "| a | 2 | 1 | 1 | 1 | 0 |",
        "| b | 1 | 1 | 0 | 0 | 1 |",
        "| all | 3 | 2 | 1 | 1 | 1 |",
    ]
    write(outcomes, tmp_path / "there", 0, 61.0)
    assert (tmp_path / "there" / "chaos.md").read_text().endswith("Seed 0, 1 methods, 1 minutes.\n")
    assert '"hangs": 1' in (tmp_path / "there" / "chaos.json").read_text()


@pytest.mark.parametrize("event", EVENTS)
def test_every_event_says_what_happens(event: str) -> None:
    assert EVENTS[event][1].__doc__
