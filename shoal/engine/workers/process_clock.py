"""How long another process has been at work, judged fairly: by what it was given to work with."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

STEP = 2.0
"""Seconds between two looks that count at most: where more have passed, this process was itself stopped."""
BUSY = 0.01
"""Share of one core that a process at work uses at least."""


@dataclass
class ProcessClock:
    """The time of a process since this was made.

    Time in which the process waited for a core that others had, or in which this process was stopped as well (Ctrl-Z, a
    suspended machine), does not count, so that no load of the machine makes work seem overdue. Where the system does
    not tell how long a process waited for a core (it does on Linux), all of the time counts.

    Args:
        pid: of the process.
    """

    pid: int
    spent: float = field(default=0.0, init=False)
    """Seconds that count."""
    idle: float = field(default=0.0, init=False)
    """The newest of these seconds in which the process hardly used a core: it is stopped, or waits for something."""

    def __post_init__(self) -> None:
        self._looked, self._waited = time.monotonic(), waited_for_core(self.pid)
        self._busy_at, self._used = 0.0, used_of_cores(self.pid)

    def look(self) -> None:
        """Bring both numbers up to now; at least every `STEP` seconds."""
        now, waited, used = time.monotonic(), waited_for_core(self.pid), used_of_cores(self.pid)
        passed = min(now - self._looked, STEP)
        self.spent += max(0.0, passed - (waited - self._waited))
        self._looked, self._waited = now, waited
        if used - self._used > BUSY * (self.spent - self._busy_at):
            self._busy_at, self._used = self.spent, used
        self.idle = self.spent - self._busy_at


class WallClock:
    """The time of work on another host since this was made, of which no more is known than that it goes on.

    Time in which this process was stopped does not count.
    """

    def __init__(self) -> None:
        self.spent, self._looked = 0.0, time.monotonic()

    def look(self) -> None:
        """Bring `spent` up to now; at least every `STEP` seconds."""
        now = time.monotonic()
        self.spent += min(now - self._looked, STEP)
        self._looked = now


def waited_for_core(pid: int) -> float:
    """Seconds that a process's main thread was ready to run and had no core; 0 where the system does not say."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def used_of_cores(pid: int) -> float:
    """Seconds of cores that all threads of a process have used; 0 of one that has ended."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)
