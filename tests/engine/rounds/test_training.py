"""Training of a round's clients: even cohorts, failures tried again, and only those charged who are to blame."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import FailureCause
from shoal.engine.messages import inspection
from shoal.engine.messages.wire import Answer, Failure, Request, Train
from shoal.engine.rounds import training
from shoal.engine.rounds.outcomes import RoundFailed, RoundOutcomes
from shoal.engine.rounds.training import even_cohorts
from shoal.engine.store.finished_work import FinishedWork
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.workers.worker import Worker
from shoal.engine.workers.worker_processes import WorkerLost
from shoal.lifecycle.starting import new_run
from tests.engine.store.test_damage import flip
from tests.runs import go_on, numbers, straight, unwell

Make = Callable[..., Any]
FEDAVG: dict[str, Any] = {"method": {"name": "fedavg"}, "partition": {"clients": 4, "validation": 0.2}}
ILL = Failure("it was ill")
REFUSED = Failure("NaN", FailureCause.MESSAGE_REFUSED)


def work(client: int) -> FinishedWork:
    return FinishedWork(client, 10, 1, 1, 0, 0.1, {}, {}, {})


def test_too_few_clients_stop_the_round_with_a_sentence() -> None:
    outcomes = RoundOutcomes([0, 1], {0: work(0)}, {1: ILL}, [2])
    outcomes.check_enough(4, 1, [])
    with pytest.raises(RoundFailed) as raised:
        outcomes.check_enough(4, 2, [7])
    assert str(raised.value) == (
        "round 4: 1 of 2 clients succeeded, 2 are needed (participation.minimum). client 1: it was ill; quarantined: 7"
    )
    assert outcomes.drawn == {0, 1, 2}


def test_the_last_outcome_of_a_client_counts_and_who_is_done_stays_done() -> None:
    outcomes = RoundOutcomes([0, 1])
    outcomes.fail(0, ILL)
    outcomes.finish(0, work(0))
    outcomes.fail(0, ILL)  # its group was trained again, for the sake of another client
    assert (list(outcomes.done), outcomes.failures) == ([0], {})
    outcomes.refuse({0: REFUSED})
    assert (list(outcomes.done), outcomes.refused) == ([], [0])


@pytest.mark.parametrize("retries", [0, 2])
def test_a_client_that_fails_is_tried_as_often_as_the_settings_say(
    home: Path, small: Make, monkeypatch: pytest.MonkeyPatch, retries: int
) -> None:
    unwell(monkeypatch, 1)
    run = straight(small(**FEDAVG, rounds=1, participation={"retries": retries}))
    assert [e.client for e in run.events() if e.kind == "client_failed"] == [1] * (retries + 1)
    assert [e.client for e in run.events() if e.kind == "client_left_out"] == [1]


def test_a_group_is_trained_as_a_whole(home: Path, small: Make) -> None:
    """A worker is lost between two clients of a group: both are trained again, so that the bits are the same."""
    settings = small(**FEDAVG, rounds=1, workers={"batched": 2})
    whole = straight(settings)
    worker = Worker()
    asked: list[tuple[tuple[int, ...], ...]] = []

    def call(request: Request) -> Answer:
        answer = worker.handle(request)
        if isinstance(request, Train):
            asked.append(request.groups)
            if len(asked) == 1:
                RoundPaths(request.run, 1).done(request.groups[0][1]).unlink()
                raise WorkerLost("gone")
        return answer

    run = straight(settings, call)
    assert asked[0][0] in asked[-1], "the client that was done is trained with the other"
    assert numbers(run) == numbers(whole)


def test_a_damaged_answer_ends_the_round_and_is_made_again(home: Path, small: Make) -> None:
    settings = small(rounds=2)
    run = new_run(settings)
    worker = Worker()

    def rots(request: Request) -> Answer:
        answer: Any = worker.handle(request)
        if isinstance(request, Train) and request.round == 2 and 1 in answer.clients:
            flip(RoundPaths(run.path, 2).work / answer.clients[1].update)
        return answer

    with pytest.raises(Exception, match=r"update-1.safetensors has been changed or damaged"):
        go_on(run, rots)
    before = len(run.events())
    go_on(run)
    trained = [e.client for e in run.events()[before:] if e.kind == "client_finished"]
    assert trained == [1], "what the others did is used"
    assert numbers(run) == numbers(straight(settings))


# --- whose fault it is ------------------------------------------------------------------------------------------------


def losing(guilty: set[int]) -> Callable[[Request], Answer]:
    """A worker that is lost at the clients that are guilty, after it did those before them."""
    worker = Worker()

    def call(request: Request) -> Answer:
        if isinstance(request, Train):
            done_groups: list[tuple[int, ...]] = []
            for group in request.groups:
                if guilty & set(group):
                    worker.handle(Train(request.run, request.round, request.clients, tuple(done_groups)))
                    raise WorkerLost("gone")
                done_groups.append(group)
        return worker.handle(request)

    return call


def test_only_who_was_at_work_is_charged_with_a_lost_worker(home: Path, small: Make) -> None:
    """Six clients in one cohort; two of them lose their worker at each try; there is no second try."""
    settings = small(partition={"clients": 6}, rounds=1, participation={"retries": 0}, data={"limit": 300})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "MAX_COHORTS_PER_SLOT", 1)
        run = straight(settings, losing({0, 3}))
    assert list(run.table("clients")["client"]) == [1, 2, 4, 5]
    failed = [e.client for e in run.events() if e.kind == "client_failed"]
    assert sorted(failed) == [0, 3]


@pytest.mark.long
def test_workers_that_never_work_end_the_run(home: Path, small: Make) -> None:
    with pytest.raises(RoundFailed, match="0 of 3 clients succeeded"):
        straight(small(), losing({0, 1, 2}))


@pytest.mark.long
def test_workers_that_never_work_end_the_run_after_some_tries(home: Path, small: Make) -> None:
    """Forty clients, each of which would otherwise be charged on its own, twice."""
    calls: list[Request] = []
    lose = losing(set(range(40)))

    def call(request: Request) -> Answer:
        calls.append(request)
        return lose(request)

    with pytest.raises(RoundFailed, match="0 of 40 clients succeeded"):
        straight(small(partition={"clients": 40}, data={"limit": 400}), call)
    assert len(calls) < 40


# --- cohorts ----------------------------------------------------------------------------------------------------------


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
    assert len(even_cohorts(dict.fromkeys(range(20), 0.19), 2, measured=True)) == 10
    assert even_cohorts({0: 0.3, 1: 0.2, 2: 0.2}, 2, measured=True) == [[1, 2], [0]]


def test_large_answers_are_read_once_and_before_the_last_client_is_done(
    home: Path, small: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = straight(small(**FEDAVG, rounds=1))
    read: list[int] = []
    load = inspection.load_update
    worker = Worker()

    def told(run: Any, round: int, done: FinishedWork) -> Any:
        read.append(done.client)
        return load(run, round, done)

    def call(request: Request) -> Answer:
        if isinstance(request, Train) and request.clients[-1].client == 3:
            deadline = time.monotonic() + 60
            while len(read) < 3 and time.monotonic() < deadline:
                time.sleep(0.01)
            assert sorted(read) == [0, 1, 2]
        return worker.handle(request)

    monkeypatch.setattr(inspection, "MIN_THREAD_BYTES", 1)
    monkeypatch.setattr(inspection, "load_update", told)
    monkeypatch.setattr(training, "even_cohorts", lambda expected, slots, measured: [[client] for client in expected])
    assert numbers(straight(small(**FEDAVG, rounds=1), call)) == numbers(whole)
    assert sorted(read) == [0, 1, 2, 3]
