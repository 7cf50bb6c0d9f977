"""Cohorts on slots: taken as they end."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.engine.rounds import dispatch as module
from shoal.engine.rounds.dispatch import Dispatch, even_cohorts
from shoal.engine.rounds.units import ThreadRunner, TrainCohort
from shoal.engine.workers.worker_processes import WorkerLost


@dataclass(frozen=True)
class Numbered(TrainCohort):
    """A cohort of one client that is carried out by `by`."""

    by: Any = None

    def execute(self) -> Any:
        return self.by(self.clients[0])


def cohorts(count: int, by: Any) -> list[TrainCohort]:
    return [Numbered(Path(), 1, ((k,),), by) for k in range(count)]


class FakeWorkers:
    """Answers with the cohort's number; the worker of a cohort in `lost` is lost."""

    def __init__(self, lost: tuple[int, ...] = ()) -> None:
        self.lost = lost

    def __call__(self, number: int) -> dict[str, int]:
        if number in self.lost:
            raise WorkerLost("gone")
        return {"of": number}


def answers(slots: FakeWorkers, many: int) -> dict[int, Any]:
    runner = ThreadRunner(3)
    try:
        return {cohort.clients[0]: answer for cohort, answer in Dispatch(runner).run(cohorts(many, slots))}
    finally:
        runner.close()


def test_every_cohort_is_answered_once() -> None:
    assert answers(FakeWorkers(), 7) == {k: {"of": k} for k in range(7)}


def test_a_lost_slot_is_reported_for_its_cohort_alone() -> None:
    found = answers(FakeWorkers(lost=(2,)), 4)
    assert isinstance(found.pop(2), WorkerLost)
    assert found == {k: {"of": k} for k in (0, 1, 3)}


@given(st.dictionaries(st.integers(0, 500), st.floats(0.01, 50), max_size=60), st.integers(1, 9), st.booleans())
def test_cohorts_hold_every_client_once_and_are_even(expected: dict[int, float], slots: int, measured: bool) -> None:
    found = even_cohorts(expected, slots, measured=measured)
    assert sorted(c for cohort in found for c in cohort) == sorted(expected)
    assert all(found)
    assert min(len(expected), slots) <= len(found) <= max(8 * slots, 0)
    loads = [sum(expected[c] for c in cohort) for cohort in found]
    assert loads == sorted(loads, reverse=True)
    if found:  # Graham: the longest is above the mean by less than the longest client
        assert loads[0] <= sum(loads) / len(loads) + max(expected.values()) + 1e-9


def test_short_clients_share_cohorts_and_long_ones_do_not() -> None:
    assert len(even_cohorts(dict.fromkeys(range(20), 0.01), 2, measured=True)) == 2
    assert len(even_cohorts(dict.fromkeys(range(20), 1.0), 2, measured=True)) == 10
    assert len(even_cohorts(dict.fromkeys(range(20), 60.0), 2, measured=True)) == 16
    assert even_cohorts({0: 1.0, 1: 0.6, 2: 0.5}, 2, measured=True) == [[1, 2], [0]]


def test_while_nothing_ends_the_clients_under_way_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_POLL_SECONDS", 0.01)
    slots, waited_for = FakeWorkers(), []
    enough = threading.Event()

    def while_waiting(clients: list[int]) -> None:
        waited_for.append(clients)
        enough.set()

    def call(number: int) -> dict[str, int]:
        assert number != 1 or enough.wait(30)
        return slots(number)

    runner = ThreadRunner(3)
    try:
        found = [c.clients[0] for c, _ in Dispatch(runner, while_waiting).run(cohorts(3, call))]
    finally:
        runner.close()
    assert sorted(found) == [0, 1, 2]
    assert all(1 in clients for clients in waited_for)
