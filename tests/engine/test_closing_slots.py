"""Worker slots that are closed while their processes still start."""

from __future__ import annotations

import multiprocessing
import threading
from typing import Any

import pytest

from engine import worker_processes
from engine.worker_processes import WorkerProcesses


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
    monkeypatch.setattr(worker_processes, "warm", SlowContext)
    monkeypatch.setattr(worker_processes, "cool", lambda: None)
    monkeypatch.setattr(worker_processes, "WAIT", 0.1)
    pool = WorkerProcesses(1)
    pool.close()
    SlowProcess.let.set()
    assert SlowProcess.ended.wait(30), "who starts late is ended at once"
    pool._starting.join(30)
    assert pool.processes[0].process is None
