"""Worker slots that are closed while their processes still start, or while somebody is still about to use them."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path
from typing import Any

import pytest

from shoal.engine.messages.wire import Train
from shoal.engine.workers import worker_processes
from shoal.engine.workers.worker_processes import WorkerLost, WorkerProcesses


class SlowProcess:
    """A process that starts when it is let, and cannot be ended before."""

    let, ended = threading.Event(), threading.Event()
    started = False

    def __init__(self, **_: Any) -> None:
        pass

    def start(self) -> None:
        assert self.let.wait(30)
        self.started = True

    def kill(self) -> None:
        assert self.started, "what was not started cannot be ended"
        self.ended.set()

    def join(self, timeout: float) -> None:
        pass

    def is_alive(self) -> bool:
        return False


class SlowContext:
    Process = SlowProcess
    Pipe = staticmethod(multiprocessing.Pipe)


def test_slots_can_be_closed_while_they_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine all runs of a study may be there before its workers are; none of them stays."""
    monkeypatch.setattr(worker_processes, "start_fork_server", SlowContext)
    monkeypatch.setattr(worker_processes, "kill_fork_server", lambda: None)
    monkeypatch.setattr(worker_processes, "JOIN_SECONDS", 0.1)
    pool = WorkerProcesses(1)
    pool.close()
    SlowProcess.let.set()
    assert SlowProcess.ended.wait(30), "who starts late is ended at once"
    pool._starting.join(30)
    assert pool.processes[0].process is None


def test_an_interrupt_does_not_wait_for_workers_that_start(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(SlowProcess):
        let, ended = threading.Event(), threading.Event()

    class Context(SlowContext):
        Process = Slow

    monkeypatch.setattr(worker_processes, "start_fork_server", Context)
    killed: list[str] = []

    def kill() -> None:
        killed.append("fork server")
        Slow.let.set()

    monkeypatch.setattr(worker_processes, "kill_fork_server", kill)
    monkeypatch.setattr(worker_processes, "JOIN_SECONDS", 60.0)  # longer than the process may start
    with pytest.raises(KeyboardInterrupt), WorkerProcesses(2) as pool:
        raise KeyboardInterrupt
    assert killed == ["fork server"]
    assert Slow.ended.wait(30)
    pool._starting.join(30)
    assert [slot.process for slot in pool.processes] == [None, None]


def test_a_slot_that_restarts_while_all_are_closed_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker was lost, and its next caller starts it again just as the run ends."""

    class Slow(SlowProcess):
        begun, let, ended = threading.Event(), threading.Event(), threading.Event()
        pid, exitcode = 0, 1

        def start(self) -> None:
            self.begun.set()
            super().start()

    class Context(SlowContext):
        Process = Slow

    monkeypatch.setattr(worker_processes.WorkerProcesses, "_start", lambda self: None)
    monkeypatch.setattr(worker_processes, "start_fork_server", Context)
    pool = WorkerProcesses(1)
    said: list[str] = []

    def ask() -> None:
        try:
            pool.call(Train(Path("/nowhere"), 1, (), ()))
        except WorkerLost as lost:
            said.append(str(lost))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    assert Slow.begun.wait(30)
    pool.close()
    Slow.let.set()
    asking.join(30)
    assert said == ["the worker slots are closed"]
    assert Slow.ended.is_set(), "nobody else would end it"
    assert pool.processes[0].process is None
