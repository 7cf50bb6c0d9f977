"""Messages read while others train: each once, no more than there is room for, and nothing comes of it but time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.engine.messages import inspection
from shoal.engine.messages import prefetcher as early
from shoal.engine.messages.prefetcher import MessagePrefetcher
from shoal.engine.messages.read_ahead import MAX_READ_AHEAD_BYTES, MIN_THREAD_BYTES
from shoal.engine.messages.wire import Trained
from shoal.engine.rounds import dispatch, prefetched_messages, training
from shoal.engine.rounds.dispatch import Dispatch
from shoal.engine.store.finished_work import FinishedWork, load_update
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.workers.worker import Worker
from shoal.lifecycle.starting import new_run
from tests.engine.store.test_damage import flip
from tests.runs import go_on, numbers, straight

Make = Callable[..., Any]

ROUNDS: dict[str, Any] = {"partition": {"clients": 4}, "rounds": 2}


@pytest.fixture
def all_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small messages are read early too."""
    monkeypatch.setattr(early, "MIN_THREAD_BYTES", 0)


def work(client: int, size: int = MIN_THREAD_BYTES, sha256: str = "00") -> FinishedWork:
    name = f"update-{client}.safetensors"
    return FinishedWork(client, 9, size, 0, 0, {}, {}, {"update": name}, {name: sha256}, 1.0)


class Reads:
    """Stands where messages are read: a string that says what was."""

    def __init__(self) -> None:
        self.read: list[int] = []
        self.threads: set[int] = set()
        self._some = threading.Condition()

    def __call__(self, done: FinishedWork) -> str:
        with self._some:
            self.read.append(done.client)
            self.threads.add(torch.get_num_threads())
            self._some.notify_all()
        if done.sha256[done.update] == "bad":
            raise ValueError(f"client {done.client} is odd")
        return f"client {done.client}, {done.sha256[done.update]}"

    def wait(self, count: int) -> None:
        with self._some:
            assert self._some.wait_for(lambda: len(self.read) == count, timeout=30)


def test_what_was_read_early_is_given_away_once() -> None:
    reads, messages = Reads(), MessagePrefetcher[str]()
    messages.begin(1, work(3), reads)
    reads.wait(1)
    assert messages.take(1, work(3)) == "client 3, 00"
    assert messages.take(1, work(3)) is None
    assert reads.read == [3]


def test_only_large_messages_are_and_as_many_as_there_is_room_for() -> None:
    reads, messages = Reads(), MessagePrefetcher[str](max_bytes=2 * MIN_THREAD_BYTES)
    messages.begin(1, work(0, MIN_THREAD_BYTES - 1), reads)
    for client in (1, 2, 3):
        messages.begin(1, work(client), reads)
    reads.wait(2)
    assert sorted(reads.read) == [1, 2]
    messages.take(1, work(1))
    messages.begin(1, work(4), reads)  # there is room again
    reads.wait(3)
    assert sorted(reads.read) == [1, 2, 4]


def test_another_answer_of_the_client_is_not_what_was_read() -> None:
    """The client was retrained since, or the answer belongs to another round."""
    reads, messages = Reads(), MessagePrefetcher[str]()
    messages.begin(1, work(3), reads)
    assert messages.take(1, work(3, sha256="11")) is None
    messages.begin(1, work(3), reads)
    assert messages.take(2, work(3)) is None
    assert messages.take(1, replace(work(3), seconds=2.0)) is None


def test_what_is_being_read_is_not_read_twice() -> None:
    reads, messages = Reads(), MessagePrefetcher[str]()
    for _ in range(3):
        messages.begin(1, work(3), reads)
    reads.wait(1)
    messages.begin(1, work(3, sha256="11"), reads)
    reads.wait(2)
    assert messages.take(1, work(3, sha256="11")) == "client 3, 11"


def test_what_reading_raised_is_raised_when_it_is_taken() -> None:
    messages = MessagePrefetcher[str]()
    messages.begin(1, work(3, sha256="bad"), Reads())
    with pytest.raises(ValueError, match="client 3 is odd"):
        messages.take(1, work(3, sha256="bad"))


def test_what_nobody_took_makes_room() -> None:
    reads, messages = Reads(), MessagePrefetcher[str](max_bytes=MIN_THREAD_BYTES)
    messages.begin(1, work(1), reads)
    reads.wait(1)
    messages.clear()
    messages.begin(1, work(2), reads)
    reads.wait(2)
    assert MessagePrefetcher[str]()._max_bytes >= MAX_READ_AHEAD_BYTES


def test_sums_over_a_message_have_the_bits_of_one_thread() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        reads, messages = Reads(), MessagePrefetcher[str]()
        messages.begin(1, work(1), reads)
        messages.take(1, work(1))
        assert reads.threads == {1}
    finally:
        torch.set_num_threads(before)


def test_a_run_has_the_same_bits_with_and_without(
    home: Path, small: Make, all_early: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[tuple[int, int]] = []
    taken: list[tuple[int, int, bool]] = []
    begin, take = MessagePrefetcher.begin, MessagePrefetcher.take

    def begins(self: MessagePrefetcher[Any], round: int, done: FinishedWork, read: Any) -> None:
        begin(self, round, done, read)
        began.extend(self._begun)

    def takes(self: MessagePrefetcher[Any], round: int, done: FinishedWork) -> Any:
        found = take(self, round, done)
        assert found is None or (found.update is not None and found.change is not None), "read, not inspected"
        taken.append((round, done.client, found is not None))
        return found

    read: list[int] = []

    def reads(run: Any, round: int, done: FinishedWork) -> Any:
        read.append(done.client)
        return load_update(run, round, done)

    monkeypatch.setattr(inspection, "load_update", reads)
    monkeypatch.setattr(MessagePrefetcher, "begin", begins)
    monkeypatch.setattr(MessagePrefetcher, "take", takes)
    with_them = numbers(straight(small(**ROUNDS)))
    assert set(began) == {(round, client) for round in (1, 2) for client in range(4)}
    assert sorted(taken) == [(round, client, True) for round in (1, 2) for client in range(4)]
    assert sorted(read) == sorted(2 * list(range(4))), "each is read once"
    monkeypatch.setattr(MessagePrefetcher, "begin", lambda *_: None)
    assert numbers(straight(small(**ROUNDS))) == with_them


@pytest.mark.long
def test_a_message_is_read_as_soon_as_its_client_is_done(
    home: Path, small: Make, all_early: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only when the cohort has ended that its client belongs to; of small models nobody looks."""
    whole = numbers(straight(small(**ROUNDS)))
    worker, arrived = Worker(), set()
    some = threading.Condition()
    begin = MessagePrefetcher.begin

    def begins(self: MessagePrefetcher[Any], round: int, done: FinishedWork, read: Any) -> None:
        begin(self, round, done, read)
        with some:
            arrived.add((round, done.client))
            some.notify_all()

    def waits(request: Any) -> Any:
        answer = worker.handle(request)
        if isinstance(answer, Trained):
            with some:
                assert some.wait_for(lambda: {(request.round, c) for c in answer.clients} <= arrived, timeout=30)
        return answer

    monkeypatch.setattr(MessagePrefetcher, "begin", begins)
    monkeypatch.setattr(dispatch, "WAITING_POLL_SECONDS", 0.01)
    monkeypatch.setattr(prefetched_messages, "REUSE_MEMORY_BYTES", 0)
    assert numbers(straight(small(**ROUNDS), waits)) == whole
    assert arrived == {(round, client) for round in (1, 2) for client in range(4)}
    looks = []
    monkeypatch.undo()
    monkeypatch.setattr(training, "Dispatch", lambda *given: looks.append(given[-1]) or Dispatch(*given))
    straight(small(**ROUNDS))
    assert looks
    assert not any(looks)


def test_an_answer_that_is_damaged_is_made_again(home: Path, small: Make, all_early: None) -> None:
    """Whether the damage came before or after it was read early."""
    settings = small(**ROUNDS)
    whole = numbers(straight(settings))
    run, worker = new_run(settings), Worker()
    spoilt: list[int] = []

    def rots(request: Any) -> Any:
        answer: Any = worker.handle(request)
        if isinstance(answer, Trained) and request.round == 2 and 1 in answer.clients and not spoilt:
            spoilt.append(1)
            flip(RoundPaths(run.path, 2).work / answer.clients[1].update)
        return answer

    go_on(run, rots)
    assert numbers(run) == whole
    (failed,) = [e for e in run.events() if e.kind == "client_failed"]
    assert failed.client == 1


def test_of_an_answer_done_twice_the_last_counts(
    home: Path, small: Make, all_early: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An aggregation that is done once more reads every message that is left again."""
    monkeypatch.setattr(inspection, "too_large_changes", lambda changes: {2: "of no use"} if 2 in changes else {})
    run = straight(small(**ROUNDS))
    assert {(e.round, e.client) for e in run.events() if e.kind == "client_refused"} == {(1, 2), (2, 2)}
