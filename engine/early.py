"""Large messages read while other clients still train, so that less is left to do when the last of them is done."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from engine.ahead import HELD, THREADS
from engine.codec import WORTHWHILE
from engine.finished_work import FinishedWork, load_update
from engine.hardware import keep_freed_memory, memory
from engine.run_folder import RunFolder
from methods.base import Update

LARGE = 1 << 22
"""Bytes of a message above which the memory of one is kept for the next."""


class EarlyMessages:
    """Messages to the server of the round that is being trained, each read once and given away once.

    Which are read early is a matter of time and of room: nothing that a run computes depends on it.

    Args:
        run: the run's folder.
        most: bytes of messages that are held at most, by default an eighth of the memory; the others are read when they
            are needed.
    """

    def __init__(self, run: RunFolder, most: int | None = None) -> None:
        self._run, self._most = run, max(HELD, memory() // 8) if most is None else most
        self._begun: dict[tuple[int, int], tuple[FinishedWork, Future[Update]]] = {}
        self._threads: ThreadPoolExecutor | None = None

    def begin(self, round: int, done: FinishedWork) -> None:
        """Begin to read what a client sent in a round, if that is worthwhile and there is room."""
        held = sum(each.bytes_up for each, _ in self._begun.values())
        if done.bytes_up < WORTHWHILE or held + done.bytes_up > self._most:
            return
        if done.bytes_up > LARGE:
            keep_freed_memory()  # else the kernel clears its every page anew, which costs more than reading it
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="early")
        self._begun[round, done.client] = done, self._threads.submit(load_update, self._run, round, done)

    def take(self, round: int, done: FinishedWork) -> Update:
        """What a client sent in a round, as `load_update` gives it; threads may call this.

        Raises:
            StoreError: the file is not the one that the client's work ended with.
        """
        was, read = self._begun.pop((round, done.client), (None, None))
        if read is None or was != done:
            return load_update(self._run, round, done)
        return read.result()

    def clear(self) -> None:
        """Let go of what nobody took."""
        self._begun.clear()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None
