"""Asynchronous rounds: the seed alone decides who answers when, and old answers are rebased."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.engine.rounds import buffered_rounds
from shoal.engine.rounds.answer_schedule import AnswerSchedule
from shoal.engine.rounds.buffered_rounds import rebase
from shoal.engine.rounds.client_history import ClientHistory
from shoal.engine.store.checkpoint import rounds_done
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.store.run_events import Event
from shoal.engine.store.run_folder import RunError
from shoal.engine.workers.worker_processes import WorkerProcesses
from shoal.lifecycle.preflight import check_buffer
from shoal.methods.contract.base import MethodError, Server
from shoal.methods.contract.message import Message
from shoal.methods.registry import METHODS
from tests.runs import go_on, numbers, stopped, straight

Make = Callable[..., Any]
ASYNC = {"buffer": 2}
FIVE = {"kind": "iid", "clients": 5}


def by_hand(schedule: AnswerSchedule, clients: int, buffer: int, rounds: int) -> list[tuple[dict[int, int], float]]:
    """Return the schedule of all clients, event by event and without draws: a free client begins at once."""
    ends = {client: (schedule.time(client), 0) for client in range(clients)}
    found, answers = [], dict[int, int]()
    while len(found) < rounds:
        client = min(ends, key=lambda c: ends[c][0])
        now, begun_from = ends.pop(client)
        answers[client] = begun_from
        if len(answers) == buffer:
            found.append((dict(sorted(answers.items())), now))
            ends |= {c: (now + schedule.time(c), len(found)) for c in answers}
            answers = {}
    return found


def test_all_at_work_is_as_by_hand() -> None:
    arrivals = AnswerSchedule([5, 10, 20, 40, 7, 30], 3, at_work=6, buffer=2)
    expected = by_hand(arrivals, 6, 2, 60)
    for number, (begun_from, time) in enumerate(expected, 1):
        found = arrivals.round(number)
        assert found.begun_from == begun_from
        assert found.time == pytest.approx(time, rel=1e-12)
    oldest = max(n - 1 - state for n, (answers, _) in enumerate(expected, 1) for state in answers.values())
    assert arrivals.oldest(60) == oldest > 2


@given(
    sizes=st.lists(st.integers(0, 50), min_size=1, max_size=12),
    share=st.floats(0.05, 1),
    part=st.floats(0.05, 1),
    dropout=st.sampled_from([0.0, 0.4]),
    seed=st.integers(0, 99),
)
def test_any_round_can_be_asked_for_first(
    sizes: list[int], share: float, part: float, dropout: float, seed: int
) -> None:
    at_work = max(1, round(share * len(sizes)))
    buffer = max(1, round(part * at_work))
    one, other = (AnswerSchedule(sizes, seed, at_work, buffer, dropout) for _ in range(2))
    last = one.round(20)
    before = 0.0
    for number in range(1, 21):
        found = other.round(number)
        assert len(found.begun_from) == buffer
        assert all(0 <= state < number for state in found.begun_from.values())
        assert found.time >= before
        before = found.time
    assert found == last


def test_slow_clients_answer_seldom_and_late() -> None:
    arrivals = AnswerSchedule([2, 3, 5, 10, 20, 30, 50, 80], 0, at_work=8, buffer=3)
    count = dict.fromkeys(range(8), 0)
    for number in range(1, 201):
        for client in arrivals.round(number).begun_from:
            count[client] += 1
    fastest, slowest = (pick(range(8), key=arrivals.time) for pick in (min, max))
    assert count[fastest] > 4 * count[slowest] > 0
    assert arrivals.oldest(200) > 5


def test_silent_clients_never_answer() -> None:
    busy, half = AnswerSchedule([10] * 40, 0, 10, 5), AnswerSchedule([10] * 40, 0, 10, 5, dropout=0.5)
    # Half of the work gives no answer, so that as many answers take twice as long.
    assert half.round(200).time / busy.round(200).time == pytest.approx(2.0, rel=0.1)


def test_a_client_without_samples_does_not_fill_every_buffer() -> None:
    arrivals = AnswerSchedule([0, 0, 10, 10, 10, 10], 0, at_work=6, buffer=2)
    assert any(not {0, 1} & arrivals.round(number).begun_from.keys() for number in range(1, 9))


def test_others_stand_in_for_those_who_are_not_asked_any_more(
    home: Any, small: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small(rounds=6, method={"name": "fedcc"}, participation={"buffer": 1}, partition=FIVE)
    expected = AnswerSchedule([len(c) for c in clients_of(straight(settings))], 0, 5, 1)
    (only_client,) = expected.round(4).begun_from
    monkeypatch.setattr(ClientHistory, "quarantined", [only_client])
    run = straight(settings)
    assert run.status().state == "finished"
    clients = run.table("clients")
    assert only_client not in set(clients["client"])
    assert clients["round"].tolist() == [1, 2, 3, 4, 5, 6]
    assert run.table("rounds").set_index("round").loc[4, "staleness"] == 0, "who stands in begins from the newest"


def test_an_old_change_is_rebased_onto_the_newest_state() -> None:
    """x + (1 + t)^-a (y - x_v): with t = 3 and a = 1/2 half of the change."""
    sent = {"w": torch.tensor([1.0, 2.0]), "b.running_var": torch.tensor([1.0]), "count": torch.tensor(4)}
    newest = {"w": torch.tensor([10.0, 20.0]), "b.running_var": torch.tensor([0.2]), "count": torch.tensor(9)}
    message = Message(
        {"w": torch.tensor([3.0, 1.0]), "b.running_var": torch.tensor([0.2]), "count": torch.tensor(6)}, {"n": 5}
    )
    found = rebase(message, sent, newest, 0.5)
    assert found.tensors["w"].tolist() == [11.0, 19.5]
    assert found.tensors["b.running_var"].tolist() == [0.0], "no variance is below 0"
    assert found.tensors["count"].item() == 6
    assert found.facts == {"n": 5}


def test_a_buffer_for_all_is_the_round_that_waits(home: Any, small: Make) -> None:
    waits = straight(small(rounds=3, method={"name": "fedcc"}))
    buffered = straight(small(rounds=3, method={"name": "fedcc"}, participation={"buffer": 3}))
    assert buffered.status().weights_sha256 == waits.status().weights_sha256
    table = buffered.table("rounds").set_index("round")
    assert table.loc[1:, "staleness"].tolist() == [0, 0, 0]
    assert "staleness" not in waits.table("rounds")
    assert "simulated_time" not in waits.table("rounds")


@pytest.mark.long
@pytest.mark.parametrize("method", ["fedpnp", "fedsimclr"])
def test_resumed_is_straight_and_states_are_kept_as_long_as_needed(home: Any, small: Make, method: str) -> None:
    settings = small(rounds=6, method={"name": method}, participation=ASYNC, partition=FIVE)
    run = straight(settings)
    table = run.table("rounds").set_index("round")
    assert table.loc[1:, "staleness"].max() > 0, "nothing would be tested"
    assert table.loc[1:, "simulated_time"].is_monotonic_increasing
    again = stopped(settings, "client_finished", 4)
    go_on(again)
    assert numbers(again) == numbers(run)
    with WorkerProcesses(2, "cpu") as pool:
        shared = straight(settings, pool.call, slots=2)
    assert numbers(shared) == numbers(run)
    kept = [r for r in rounds_done(run) if RoundPaths(run.path, r).server.exists()]
    assert len(kept) < 7, "states that nobody begins from any more are removed"


def test_old_answers_count_less(home: Any, small: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    weights: list[float] = []
    inner = buffered_rounds.rebase

    def watch(message: Message, sent: Any, newest: Any, weight: float) -> Message:
        weights.append(weight)
        assert any(not torch.equal(sent[name], newest[name]) for name in sent)
        return inner(message, sent, newest, weight)

    monkeypatch.setattr(buffered_rounds, "rebase", watch)
    run = straight(small(rounds=6, method={"name": "fedcc"}, participation=ASYNC, partition=FIVE))
    arrivals = AnswerSchedule([len(c) for c in clients_of(run)], 0, 5, 2)
    ages = [n - 1 - s for n in range(1, 7) for s in arrivals.round(n).begun_from.values() if s < n - 1]
    assert weights == pytest.approx([1 / math.sqrt(1 + age) for age in ages])
    assert ages


def test_work_begins_from_the_state_of_its_time(home: Any, small: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: dict[int, dict[int, int]] = {}
    broadcast = METHODS["fedcc"].broadcast

    def watch(self: Any, server: Server, client: int) -> Message:
        if current:
            begun.setdefault(current[-1], {})[client] = server.round
        return broadcast(self, server, client)

    current: list[int] = []

    def note(event: Event) -> None:
        if event.kind == "round_started":
            current.append(event.round)

    monkeypatch.setattr(METHODS["fedcc"], "broadcast", watch)
    monkeypatch.setattr(buffered_rounds.BufferedRounds, "rebased", lambda self, newest, updates: updates)
    run = straight(small(rounds=6, method={"name": "fedcc"}, participation=ASYNC, partition=FIVE), observers=[note])
    arrivals = AnswerSchedule([len(c) for c in clients_of(run)], 0, 5, 2)
    assert begun == {number: arrivals.round(number).begun_from for number in range(1, 7)}


def clients_of(run: Any) -> list[Any]:
    """Training samples of each client of a run."""
    from shoal.engine.store.opened_run import OpenedRun

    opened = OpenedRun(run)
    return [range(size) for size in opened.federation.sizes]


def test_what_cannot_be_is_refused(home: Any, small: Make) -> None:
    for method in ("kfed", "cfcl", "fedsimclr_kmeans"):
        with pytest.raises(MethodError, match=rf"participation\.buffer is for .* fedavg.*'{method}' is none of them"):
            check_buffer(small(method={"name": method}, participation={"buffer": 2}))
    check_buffer(small(method={"name": "fedsimclr"}, participation={"buffer": 2}))
    private = {"method": {"name": "fedcc"}, "privacy": {"clip": 1.0, "noise": 1.0}}
    with pytest.raises(MethodError, match=r"set participation\.staleness to 0"):
        check_buffer(small(**private, participation={"buffer": 2}))
    check_buffer(small(**private, participation={"buffer": 2, "staleness": 0}))
    with pytest.raises(RunError, match=r"participation\.buffer is 3, and only 2 of 3 clients train at the same time"):
        straight(small(method={"name": "fedcc"}, participation={"buffer": 3, "fraction": 0.6}))
