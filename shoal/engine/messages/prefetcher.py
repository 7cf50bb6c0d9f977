"""Read and inspect large messages while other clients still train, so that less work is left after the last."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from shoal.engine.messages.read_ahead import MAX_READ_AHEAD_BYTES, MIN_THREAD_BYTES, THREADS
from shoal.engine.settings.hardware import keep_freed_memory, memory
from shoal.engine.settings.one_thread import one_thread
from shoal.engine.store.finished_work import FinishedWork

REUSE_MEMORY_BYTES = 1 << 22
"""Size of a message above which its freed memory is kept for the next message."""

Read = TypeVar("Read")


class MessagePrefetcher(Generic[Read]):
    """Messages to the server of the current round, each read once and returned once.

    Which messages are read early depends on time and memory; the results of a run do not depend on it.

    Args:
        max_bytes: of messages in memory; None: an eighth of the machine's memory. Other messages are read when they are
            needed.
    """

    def __init__(self, max_bytes: int | None = None) -> None:
        if max_bytes is None:
            max_bytes = max(MAX_READ_AHEAD_BYTES, memory() // 8)
        self._max_bytes = max_bytes
        self._begun: dict[tuple[int, int], tuple[FinishedWork, Future[Read]]] = {}
        self._threads: ThreadPoolExecutor | None = None

    def begin(self, round: int, done: FinishedWork, read: Callable[[FinishedWork], Read]) -> None:
        """Begin to read a client's message if it is large, there is room, and it is not being read already.

        Args:
            round: the round.
            done: what the client did.
            read: reads it; a thread calls this, and its sums have the bits of one thread.
        """
        begun = self._begun.get((round, done.client))
        if begun is not None and begun[0] == done:
            return
        used_bytes = sum(each.bytes_up for each, _ in self._begun.values())
        if done.bytes_up < MIN_THREAD_BYTES or used_bytes + done.bytes_up > self._max_bytes:
            return
        if done.bytes_up > REUSE_MEMORY_BYTES:
            keep_freed_memory()  # else the kernel clears every page again, which costs more than reading
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="early")
        self._begun[round, done.client] = done, self._threads.submit(_on_one_thread, read, done)

    def take(self, round: int, done: FinishedWork) -> Read | None:
        """Return a client's message, or raise the error of reading it; threads may call this.

        Returns:
            None: it was not read early, or belongs to another answer of the client.
        """
        begun = self._begun.pop((round, done.client), None)
        if begun is None or begun[0] != done:
            return None
        return begun[1].result()

    def clear(self) -> None:
        """Drop the messages that were not taken."""
        self._begun.clear()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None


def _on_one_thread(read: Callable[[FinishedWork], Read], done: FinishedWork) -> Read:
    with one_thread():
        return read(done)
