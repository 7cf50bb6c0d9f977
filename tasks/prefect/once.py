"""Work that is executed exactly once, even where Prefect starts its task run late or never."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from prefect import task

from shoal.tasks.prefect.retries import NO_RETRY


class SingleExecution:
    """Work that is executed at most once; its outcome does not depend on Prefect.

    Args:
        work: does it.

    Attributes:
        outcome: what it returns or raises.
    """

    def __init__(self, work: Callable[[], Any]) -> None:
        self.outcome: Future[Any] = Future()
        self._work = work
        self._start = threading.Lock()

    def __call__(self) -> None:
        """Do the work unless it was begun before; exceptions are kept in `outcome` and raised."""
        if not self._start.acquire(blocking=False):
            return
        try:
            self.outcome.set_result(self._work())
        except BaseException as error:
            self.outcome.set_exception(error)
            raise


def unit_task(name: str) -> Any:
    """Return the task that does a unit of the engine's work: its task run takes a `SingleExecution`."""

    def do(work: SingleExecution) -> None:
        work()

    return task(name=name, **NO_RETRY)(do)
