"""The engine's runner inside a flow: units of work as Prefect task runs, executed once even where Prefect is lost."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from prefect.utilities.annotations import quote

from shoal.core.errors import short_text
from shoal.engine.rounds.units import AggregateRound, EvaluateRound, TrainCohort, Unit
from shoal.lifecycle.run_views import MakeViews
from shoal.review.results.clusters import FindClusters
from shoal.review.served.record import LogRun, RegisterModel
from shoal.tasks.aggregate import aggregate
from shoal.tasks.assign import assign
from shoal.tasks.evaluate import evaluate
from shoal.tasks.log import log
from shoal.tasks.prefect.environment import server_lost
from shoal.tasks.prefect.once import SingleExecution, take_ticket
from shoal.tasks.register import register
from shoal.tasks.report import report
from shoal.tasks.train import train

TASKS: dict[type, Any] = {
    TrainCohort: train,
    AggregateRound: aggregate,
    EvaluateRound: evaluate,
    FindClusters: assign,
    MakeViews: report,
    LogRun: log,
    RegisterModel: register,
}
"""The task of each kind of unit."""


class PrefectRunner:
    """A runner that submits every unit of work as a named task run.

    Where Prefect fails (its server is gone), the unit is executed on a plain thread, and Prefect is not used again in
    this run.

    Args:
        threads: how many units may run at once.
        warn: called once with a sentence when Prefect is lost.
    """

    def __init__(self, threads: int, warn: Callable[[str], None]) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="shoal")
        self._warn = warn
        self._lost = False

    def submit(self, unit: Unit) -> Future[Any]:
        """Submit `unit` as a task run of its name."""
        execution = SingleExecution(unit)
        if not self._lost:
            ticket = take_ticket(execution)
            try:
                # Quoted: Prefect would look for futures among a cohort's clients.
                run = TASKS[type(unit)].with_options(task_run_name=unit.name).submit(quote(unit), ticket)
                self._pool.submit(self._watch, run, execution)
                return execution.outcome
            except Exception as error:
                self._lose(error)
        self._pool.submit(execution)
        return execution.outcome

    def close(self) -> None:
        """Let running work end, and start no more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

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
