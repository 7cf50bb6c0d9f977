"""Cohorts on slots: taken as they end, begun again where one hangs."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.engine.messages.wire import Failed
from shoal.engine.rounds import dispatch as module
from shoal.engine.rounds.dispatch import Cohort, Dispatch, even_cohorts
from shoal.engine.rounds.units import ThreadRunner, TrainCohort
from shoal.engine.workers.worker_processes import WorkerLost


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 0.02)


@dataclass(frozen=True)
class Numbered(TrainCohort):
    """A cohort of one client that is carried out by `by`."""

    by: Any = None

    def execute(self) -> Any:
        return self.by(self.clients[0])


def cohorts(count: int, by: Any) -> list[Cohort]:
    return [Cohort(Numbered(Path(), 1, ((k,),), by), 1.0) for k in range(count)]


class FakeWorkers:
    """Answers with the cohort's number; the first copy of a cohort in `stuck` waits until it is released."""

    def __init__(self, stuck: tuple[int, ...] = (), lost: tuple[int, ...] = ()) -> None:
        self.stuck, self.lost = set(stuck), set(lost)
        self.release = threading.Event()
        self.calls: list[int] = []
        self._lock = threading.Lock()

    def __call__(self, number: int) -> dict[str, int]:
        with self._lock:
            self.calls.append(number)
            hang, lose = number in self.stuck, number in self.lost
            self.stuck.discard(number)
            self.lost.discard(number)
        if lose:
            raise WorkerLost("gone")
        if hang:
            assert self.release.wait(30)
            raise WorkerLost("the hanging copy ends last, without an answer")
        return {"of": number}


def on_two_slots(call: Any) -> dict[int, Any]:
    """What four cohorts are answered, by their number."""
    runner = ThreadRunner(3)
    try:
        return {c.unit.clients[0]: a for c, a in Dispatch(runner, 2, 3.0).run(cohorts(4, call))}
    finally:
        runner.close()


def answers(slots: FakeWorkers, many: int, **settings: Any) -> tuple[dict[int, Any], list[str]]:
    runner = ThreadRunner(3)
    told: list[str] = []
    try:
        work = Dispatch(runner, 2, tell=lambda cohort: told.append(cohort.unit.name), **settings)
        return {c.unit.clients[0]: answer for c, answer in work.run(cohorts(many, slots))}, told
    finally:
        slots.release.set()
        runner.close()


def test_every_cohort_is_answered_once() -> None:
    found, told = answers(FakeWorkers(), 7)
    assert found == {k: {"of": k} for k in range(7)}
    assert not told


def test_a_hanging_cohort_is_begun_again_on_a_free_slot_and_the_copy_counts() -> None:
    slots = FakeWorkers(stuck=(1,))
    found, told = answers(slots, 5, straggler_factor=3.0)
    assert found == {k: {"of": k} for k in range(5)}
    assert told == ["round 1, clients 1"]
    assert sorted(slots.calls) == [0, 1, 1, 2, 3, 4]


def test_a_lost_slot_is_reported_for_its_cohort_alone() -> None:
    found, _ = answers(FakeWorkers(lost=(2,)), 4, straggler_factor=3.0)
    assert isinstance(found.pop(2), WorkerLost)
    assert found == {k: {"of": k} for k in (0, 1, 3)}


def test_a_lost_copy_does_not_count_while_the_other_is_at_work() -> None:
    """The first copy hangs; the second one is lost; then the first one answers."""
    slots = FakeWorkers(stuck=(1,))
    slots_call = slots.__call__
    copies = 0

    def call(number: int) -> dict[str, int]:
        nonlocal copies
        if number != 1:
            return slots_call(number)
        copies += 1
        if copies == 2:
            slots.release.set()
            raise WorkerLost("the copy is gone")
        assert slots.release.wait(30)
        return {"of": 1}

    found = on_two_slots(call)
    assert copies >= 2  # a third one, where the first has not answered by then
    assert found == {k: {"of": k} for k in range(4)}


def test_a_failed_copy_does_not_count_while_the_other_is_at_work() -> None:
    """A late copy may find the files of its round gone."""
    first, tried = threading.Event(), threading.Event()
    copies = 0

    def call(number: int) -> Any:
        nonlocal copies
        if number != 1:
            return {"of": number}
        copies += 1
        if copies > 1:
            tried.set()
            return Failed("its files are gone")
        assert tried.wait(30)
        first.wait(0.2)  # so that the failed copy ends first
        return {"of": 1}

    found = on_two_slots(call)
    assert found == {k: {"of": k} for k in range(4)}


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
        found = [c.unit.clients[0] for c, _ in Dispatch(runner, 2, while_waiting=while_waiting).run(cohorts(3, call))]
    finally:
        runner.close()
    assert sorted(found) == [0, 1, 2]
    assert all(1 in clients for clients in waited_for)
