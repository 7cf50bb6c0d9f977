"""The clock of a worker counts what the worker was given to work with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from shoal.engine.workers import process_clock
from shoal.engine.workers.process_clock import ProcessClock


class Machine:
    """A machine whose times are set by hand."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = self.waited = self.used = 0.0
        patch.setattr(process_clock.time, "monotonic", lambda: self.now)
        patch.setattr(process_clock, "core_wait_seconds", lambda pid: self.waited)
        patch.setattr(process_clock, "core_seconds", lambda pid: self.used)

    def goes_on(self, clock: ProcessClock, seconds: float, *, waiting: float = 0.0, using: float = 0.0) -> None:
        """So many seconds, of whose every second so much is waited for a core, or used of one."""
        for _ in range(int(seconds * 2)):
            self.now += 0.5
            self.waited += 0.5 * waiting
            self.used += 0.5 * using
            clock.update()


def test_the_clock_counts_what_a_process_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    clock = ProcessClock(1)
    machine.goes_on(clock, 10, using=1.0)
    assert (clock.spent, clock.idle) == (10.0, 0.0)
    machine.goes_on(clock, 90, waiting=0.9, using=0.1)  # nine others have the core
    assert clock.spent == pytest.approx(19.0)
    assert clock.idle == 0.0
    machine.goes_on(clock, 30)
    assert (clock.spent, clock.idle) == (pytest.approx(49.0), pytest.approx(30.0))
    machine.goes_on(clock, 1, using=1.0)
    assert clock.idle == 0.0
    machine.goes_on(clock, 1000, using=0.002)  # wakes up now and then, and does nothing
    assert clock.idle > 900


def test_time_in_which_the_watcher_was_stopped_itself_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    clock = ProcessClock(1)
    machine.now += 3600  # Ctrl-Z, an hour, fg
    clock.update()
    assert clock.spent == process_clock.MAX_STEP_SECONDS


def test_a_real_process_is_seen_at_work_and_stopped() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            clock = ProcessClock(process.pid)
            while process_clock.core_seconds(process.pid) < 0.05:
                time.sleep(0.02)
            clock.update()
            assert clock.idle == 0.0
            os.kill(process.pid, signal.SIGSTOP)
            clock = ProcessClock(process.pid)
            while clock.spent < 0.3:
                time.sleep(0.05)
                clock.update()
            assert clock.idle > 0.2
        finally:
            process.kill()
    assert process_clock.core_seconds(process.pid) == process_clock.core_wait_seconds(process.pid) == 0.0
