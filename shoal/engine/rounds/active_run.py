"""The runs that this process works on, with their workers and the states of the last rounds.

A unit of work (`shoal.engine.rounds.units`) names a run by its folder and a round by its number. The process that
executes it finds the rest here. A process that has not opened the run opens it from its folder, so that a unit can be
sent to another process, or to another host that sees the folder.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

from shoal.engine.cluster.pools import open_pool
from shoal.engine.messages.inspection import Inspected
from shoal.engine.messages.prefetcher import MessagePrefetcher
from shoal.engine.messages.wire import Answer, Request
from shoal.engine.rounds.answer_schedule import AnswerSchedule, Speeds
from shoal.engine.rounds.deadlines import Limits, WorkTimes
from shoal.engine.store.checkpoint import load_state
from shoal.engine.store.codec import load_server, load_tensors
from shoal.engine.store.finished_work import FinishedWork, finished_work
from shoal.engine.store.memory_index import MemoryIndex
from shoal.engine.store.opened_run import OpenedRun
from shoal.engine.store.round_paths import MEMORIES, SERVER, RoundPaths
from shoal.engine.store.run_folder import RunError, RunFolder
from shoal.methods.contract.base import Server

Call = Callable[[Request], Answer]
"""Has a worker do a request, and waits for the answer."""
STATES_IN_MEMORY = 2
"""Number of server states in memory: of the round before, and of the round whose checkpoint is not closed yet."""


class ActiveRun:
    """A run that this process works on.

    Args:
        run: the run's folder.
        call: has a worker do a request.
    """

    def __init__(self, run: RunFolder, call: Call) -> None:
        self.run = run
        self.call = call
        self.prefetcher: MessagePrefetcher[Inspected] = MessagePrefetcher()
        self._states: dict[int, tuple[Server, MemoryIndex]] = {}
        self._older: dict[int, Server] = {}
        self._done: tuple[int, dict[int, FinishedWork]] = (0, {})

    @cached_property
    def opened(self) -> OpenedRun:
        """Settings, data, partition and method."""
        return OpenedRun(self.run)

    @cached_property
    def times(self) -> WorkTimes:
        """The times of this run's work in this process."""
        return WorkTimes(Limits.from_settings(self.opened.settings.workers), self.opened.federation.sizes)

    @cached_property
    def speeds(self) -> Speeds:
        """The simulated times of clients."""
        return Speeds(self.opened.federation.sizes, self.opened.settings.seed)

    @cached_property
    def answer_schedule(self) -> AnswerSchedule | None:
        """The answers of each round; None if a round waits for all its clients.

        Raises:
            RunError: fewer clients train at once than answers make a round.
        """
        participation = self.opened.settings.participation
        clients = self.opened.federation.clients
        if participation.buffer is None:
            return None
        at_work = max(1, round(participation.fraction * clients))
        if participation.buffer > at_work:
            raise RunError(
                f"participation.buffer is {participation.buffer}, and only {at_work} of {clients} clients train at the "
                "same time (participation.fraction): lower participation.buffer or raise participation.fraction"
            )
        return AnswerSchedule(self.speeds, at_work, participation.buffer, participation.dropout)

    def begun_from(self, round: int, client: int) -> int:
        """Return the round of the state from which a client's work begins: the round before, if rounds wait for all."""
        newest = round - 1
        if self.answer_schedule is None:
            return newest
        # A client that replaces a quarantined one begins now.
        return self.answer_schedule.round(round).begun_from.get(client, newest)

    def older_state(self, round: int) -> Server:
        """Return the server state of a closed round from its checkpoint; the last few stay in memory.

        Raises:
            StoreError: it is missing or damaged.
        """
        if round not in self._older:
            self._older[round] = load_state(self.run, round)
            for old in list(self._older)[:-STATES_IN_MEMORY]:
                del self._older[old]
        return self._older[round]

    def keep_state(self, server: Server, memory_index: MemoryIndex) -> None:
        """Keep the state after a round in memory."""
        self._states[server.round] = server, memory_index
        for old in sorted(self._states)[:-STATES_IN_MEMORY]:
            del self._states[old]

    def state(self, round: int) -> tuple[Server, MemoryIndex]:
        """Return server state and memory index after a round, even if its checkpoint is not closed yet.

        Raises:
            StoreError: it is not in memory, and cannot be read.
        """
        if round not in self._states:
            paths = RoundPaths(self.run.path, round)
            folder = paths.scratch
            if paths.checkpoint.exists():
                folder = paths.checkpoint
            index = MemoryIndex.from_tensors(load_tensors(folder / MEMORIES)[0])
            self.keep_state(load_server(folder / SERVER), index)
        return self._states[round]

    def keep_done(self, round: int, done: dict[int, FinishedWork]) -> None:
        """Keep the work of a round's clients in memory."""
        self._done = round, done

    def done(self, round: int, client: int) -> FinishedWork:
        """Return a client's work in a round.

        Raises:
            RunError: its done-file is missing or incomplete.
        """
        done_round, done = self._done
        if done_round == round and client in done:
            return done[client]
        found = finished_work(self.run, round, client)
        if found is None:
            raise RunError(f"run {self.run.name} has no finished work of client {client} in round {round}")
        return found


_lock = threading.Lock()
_active_runs: dict[Path, list[ActiveRun]] = {}
"""Registered runs by folder; the last of one folder counts."""
_thread = threading.local()
"""The run for which a thread works (`acting_for`)."""
_opened_here = contextlib.ExitStack()
atexit.register(_opened_here.close)


@contextlib.contextmanager
def activate(active_run: ActiveRun) -> Iterator[ActiveRun]:
    """Register a run, so that its units of work in this process find it; remove it at the end."""
    path = active_run.run.path
    with _lock:
        _active_runs.setdefault(path, []).append(active_run)
    try:
        yield active_run
    finally:
        with _lock:
            _active_runs[path].remove(active_run)
            if not _active_runs[path]:
                del _active_runs[path]


def registered_run(path: Path) -> ActiveRun | None:
    """Return the run in `path` as it is registered in this process; None if it is not."""
    with _lock:
        registered = _active_runs.get(RunFolder(path).path, [None])
        return registered[-1]


@contextlib.contextmanager
def acting_for(active_run: ActiveRun | None) -> Iterator[None]:
    """Have this thread work for one registered run, even if the run is removed meanwhile.

    Otherwise a late unit of work, whose run was interrupted, would count as one from another process, and open workers
    of its own.
    """
    before = getattr(_thread, "active_run", None)
    _thread.active_run = active_run
    try:
        yield
    finally:
        _thread.active_run = before


def active_run_at(path: Path) -> ActiveRun:
    """Return the run in `path` as this process works on it.

    A run that is not registered is opened, with the workers that its settings ask for, until this process ends.
    """
    run = RunFolder(path)
    own: ActiveRun | None = getattr(_thread, "active_run", None)
    if own is not None and own.run.path == run.path:
        return own
    with _lock:
        if run.path not in _active_runs:
            device = run.lineage().resolved.device
            pool = _opened_here.enter_context(open_pool(run.settings().workers, device))
            _active_runs[run.path] = [ActiveRun(run, pool.call)]
        return _active_runs[run.path][-1]
