"""Units of work as Prefect task runs, done exactly once whether or not Prefect's server stays in reach."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tasks.prefect_environment import lost
from tasks.units import UNITS


class Once:
    """A piece of work that runs at most once; its outcome is kept apart from what Prefect makes of it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.outcome: Future[Any] = Future()
        self._work = work
        self._begun = threading.Lock()

    def __call__(self) -> None:
        """Run the work unless it was begun before; exceptions are kept in `outcome` and raised."""
        if not self._begun.acquire(blocking=False):
            return
        try:
            self.outcome.set_result(self._work())
        except BaseException as error:
            self.outcome.set_exception(error)
            raise


class PrefectRunner:
    """The engine's runner inside a flow: every unit of work is a named task run.

    Where Prefect fails (its server is gone), the work is done all the same, on a plain thread, and Prefect is not
    asked again in this run.

    Args:
        threads: how many units may run at once.
        warn: told once, in words, when Prefect is lost.
    """

    def __init__(self, threads: int, warn: Callable[[str], None]) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="shoal")
        self._warn = warn
        self._lost = False

    def submit(self, kind: str, name: str, work: Callable[[], Any]) -> Future[Any]:
        """Begin `work` as a task run named `name`."""
        once = Once(work)
        if not self._lost:
            try:
                run = UNITS[kind].with_options(task_run_name=name).submit(once)
                self._pool.submit(self._mind, run, once)
                return once.outcome
            except Exception as error:
                self._lose(error)
        self._pool.submit(once)
        return once.outcome

    def close(self) -> None:
        """Let running work end."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _mind(self, run: Any, once: Once) -> None:
        try:
            run.wait()
            if not once.outcome.done():
                raise RuntimeError(f"the task run ended as {run.state.name} without doing its work")
        except Exception as error:
            if not once.outcome.done():
                self._lose(error)
                once()

    def _lose(self, error: Exception) -> None:
        if not self._lost:
            self._lost = True
            lost.set()
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            self._warn(f"Prefect does not answer ({first[:200]}); the run goes on without it")
