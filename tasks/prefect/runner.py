"""The engine's runner inside a flow: its work as Prefect task runs, executed once even where Prefect is lost."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from prefect.utilities.annotations import quote

from shoal.core.errors import short_text
from shoal.engine.rounds.runner import Result, Task, ThreadRunner
from shoal.tasks.aggregate import aggregate
from shoal.tasks.assign import assign
from shoal.tasks.evaluate import evaluate
from shoal.tasks.log import log
from shoal.tasks.prefect.environment import server_lost
from shoal.tasks.prefect.once import SingleExecution
from shoal.tasks.register import register
from shoal.tasks.report import report
from shoal.tasks.train import train

TASKS: dict[Task, Any] = {
    "train": train,
    "aggregate": aggregate,
    "evaluate": evaluate,
    "assign": assign,
    "report": report,
    "log": log,
    "register": register,
}


class PrefectRunner(ThreadRunner):
    """A runner that submits all work as named task runs.

    Where Prefect fails (its server is gone), the work is executed on a plain thread, and Prefect is not used again in
    this run.

    Args:
        threads: how much work may be done at once.
        warn: called once with a sentence when Prefect is lost.
    """

    def __init__(self, threads: int, warn: Callable[[str], None]) -> None:
        super().__init__(threads)
        self._warn = warn
        self._lost = False

    def submit(self, task: Task, name: str, work: Callable[[], Result]) -> Future[Result]:
        """Submit work as a task run; see `shoal.engine.rounds.runner.Runner`."""
        execution = SingleExecution(work)
        if not self._lost:
            try:
                run = TASKS[task].with_options(task_run_name=name).submit(quote(execution))
                self._pool.submit(self._watch, run, execution)
                return execution.outcome
            except Exception as error:
                self._lose(error)
        self._pool.submit(execution)
        return execution.outcome

    def _watch(self, run: Any, execution: SingleExecution) -> None:
        try:
            run.wait()
            if not execution.outcome.done():
                raise RuntimeError(f"the task run ended as {run.state.name} without doing its work")
        except Exception as error:
            if not execution.outcome.done():
                self._lose(error)
                execution()

    def _lose(self, error: Exception) -> None:
        if not self._lost:
            self._lost = True
            server_lost.set()
            self._warn(f"Prefect does not answer ({short_text(error)}); the run continues without it")
