"""Units of work as Prefect task runs, done exactly once whether or not Prefect's server stays in reach."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from prefect.utilities.annotations import quote

from shoal.engine.rounds.units import AggregateRound, EvaluateRound, TrainCohort, Unit
from shoal.lifecycle.run_views import MakeViews
from shoal.review.results.clusters import FindClusters
from shoal.review.served.record import LogRun, PromoteModel
from shoal.tasks.aggregate import aggregate
from shoal.tasks.assign import assign
from shoal.tasks.evaluate import evaluate
from shoal.tasks.log import log
from shoal.tasks.prefect.environment import lost
from shoal.tasks.prefect.once import Once, take_ticket
from shoal.tasks.promote import promote
from shoal.tasks.report import report
from shoal.tasks.train import train

TASKS: dict[type, Any] = {
    TrainCohort: train,
    AggregateRound: aggregate,
    EvaluateRound: evaluate,
    FindClusters: assign,
    MakeViews: report,
    LogRun: log,
    PromoteModel: promote,
}
"""The task of each kind of unit."""


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

    def submit(self, unit: Unit, begun: Callable[[], None] | None = None) -> Future[Any]:
        """Begin `unit` as a task run of its name."""
        once = Once(unit, begun)
        if not self._lost:
            ticket = take_ticket(once)
            try:
                # Quoted: Prefect would look for futures among a cohort's clients.
                run = TASKS[type(unit)].with_options(task_run_name=unit.name).submit(quote(unit), ticket)
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
