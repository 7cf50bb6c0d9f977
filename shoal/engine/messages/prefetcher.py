"""Large messages read and inspected while other clients still train, so that less is left when the last is done."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from shoal.engine.settings.hardware import keep_freed_memory, memory
from shoal.engine.settings.one_thread import one_thread
from shoal.engine.store.codec import WORTHWHILE
from shoal.engine.store.finished_work import FinishedWork
from shoal.engine.store.read_ahead import HELD, THREADS

LARGE = 1 << 22
"""Bytes of a message above which the memory of one is kept for the next."""


Read = TypeVar("Read")


class MessagePrefetcher(Generic[Read]):
    """Messages to the server of the round that is being trained, each read once and given away once.

    Which are read early is a matter of time and of room: nothing that a run computes depends on it.

    Args:
        most: bytes of messages that are held at most, by default an eighth of the memory; the others are read when they
            are needed.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = max(HELD, memory() // 8) if most is None else most
        self._begun: dict[tuple[int, int], tuple[FinishedWork, Future[Read]]] = {}
        self._threads: ThreadPoolExecutor | None = None

    def begin(self, round: int, done: FinishedWork, read: Callable[[FinishedWork], Read]) -> None:
        """Begin to read what a client sent in a round, if that is worthwhile, not begun already, and there is room.

        Args:
            round: the round.
            done: what the client did.
            read: reads it; a thread calls this, and its sums have the bits of one thread.
        """
        if (known := self._begun.get((round, done.client))) is not None and known[0] == done:
            return
        held = sum(each.bytes_up for each, _ in self._begun.values())
        if done.bytes_up < WORTHWHILE or held + done.bytes_up > self._most:
            return
        if done.bytes_up > LARGE:
            keep_freed_memory()  # else the kernel clears its every page anew, which costs more than reading it
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="early")
        self._begun[round, done.client] = done, self._threads.submit(_on_one_thread, read, done)

    def take(self, round: int, done: FinishedWork) -> Read | None:
        """What was read of a client's message in a round, or what reading it raised; threads may call this.

        None: it was not read early, or was of another answer of the client.
        """
        was, read = self._begun.pop((round, done.client), (None, None))
        return None if read is None or was != done else read.result()

    def clear(self) -> None:
        """Let go of what nobody took."""
        self._begun.clear()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None


def _on_one_thread(read: Callable[[FinishedWork], Read], done: FinishedWork) -> Read:
    with one_thread():
        return read(done)
