"""Clocks of work in other processes, which count only time in which the work could have been done."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

MAX_STEP_SECONDS = 2.0
"""Most time between two calls of `update` that counts: in a longer pause this process was stopped itself."""
MIN_CORE_SHARE = 0.01
"""Smallest share of one core that a working process uses."""


@dataclass
class ProcessClock:
    """The working time of a process since this clock was made.

    Time in which the process waited for a core, or in which this process was stopped as well (Ctrl-Z, a suspended
    machine), does not count, so that work on a busy machine does not seem late. Only Linux says how long a process
    waited for a core; elsewhere all of the time counts.

    Args:
        pid: id of the process.
    """

    pid: int
    spent: float = field(default=0.0, init=False)
    """Seconds that count."""
    idle: float = field(default=0.0, init=False)
    """The newest of these seconds, in which the process hardly used a core: it is stopped, or waits for something."""

    def __post_init__(self) -> None:
        self._updated_at = time.monotonic()
        self._waited = core_wait_seconds(self.pid)
        self._busy_at = 0.0
        self._used = core_seconds(self.pid)

    def update(self) -> None:
        """Bring `spent` and `idle` up to now; call this at least every `MAX_STEP_SECONDS`."""
        now = time.monotonic()
        waited = core_wait_seconds(self.pid)
        used = core_seconds(self.pid)
        passed = min(now - self._updated_at, MAX_STEP_SECONDS)
        self.spent += max(0.0, passed - (waited - self._waited))
        self._updated_at = now
        self._waited = waited
        if used - self._used > MIN_CORE_SHARE * (self.spent - self._busy_at):
            self._busy_at = self.spent
            self._used = used
        self.idle = self.spent - self._busy_at


class WallClock:
    """The time since this clock was made, for work on another host.

    Time in which this process was stopped does not count.
    """

    def __init__(self) -> None:
        self.spent = 0.0
        self._updated_at = time.monotonic()

    def update(self) -> None:
        """Bring `spent` up to now; call this at least every `MAX_STEP_SECONDS`."""
        now = time.monotonic()
        self.spent += min(now - self._updated_at, MAX_STEP_SECONDS)
        self._updated_at = now


def core_wait_seconds(pid: int) -> float:
    """Return for how many seconds a process's main thread was ready to run and had no core; 0 if that is unknown."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def core_seconds(pid: int) -> float:
    """Return how many seconds of cores the threads of a process have used; 0 for one that has ended."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)
