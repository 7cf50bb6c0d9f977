"""Where the work of a run's steps is executed: on threads of this process, or as Prefect task runs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal, Protocol, TypeVar

Result = TypeVar("Result")
Task = Literal["train", "aggregate", "evaluate", "assign", "report", "log", "register"]
"""Kinds of work, each of which is a task of Prefect's (`shoal.tasks`)."""


class Runner(Protocol):
    """Executes work in the background: on threads (`ThreadRunner`), or as task runs (`shoal.tasks.prefect.runner`)."""

    def submit(self, task: Task, name: str, work: Callable[[], Result]) -> Future[Result]:
        """Execute work once, and return a future with what it returns or raises.

        Args:
            task: its kind.
            name: its name among the work of the run, for people.
            work: does it.
        """
        ...

    def close(self) -> None:
        """Start no further work; running work continues."""
        ...


class ThreadRunner:
    """Executes work on threads of this process."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="shoal")

    def submit(self, task: Task, name: str, work: Callable[[], Result]) -> Future[Result]:
        """Execute work on a thread; see `Runner`."""
        return self._pool.submit(work)

    def close(self) -> None:
        """Start no further work; running work continues."""
        self._pool.shutdown(wait=False, cancel_futures=True)
