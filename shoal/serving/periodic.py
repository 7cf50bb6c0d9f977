"""A check that `shoal serve` repeats on a thread of its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from shoal.core.errors import ShoalError


class PeriodicCheck:
    """Calls a function at once, and then every so many seconds.

    Args:
        check: may raise ShoalError or OSError where the server is busy or a disk is away: it is called again soon.
        seconds: between two calls.
        name: of the thread.
    """

    def __init__(self, check: Callable[[], Any], seconds: float, name: str) -> None:
        self.check = check
        self.seconds = seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Call the function no more."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            with contextlib.suppress(ShoalError, OSError):
                self.check()
            self._stopped.wait(self.seconds)
