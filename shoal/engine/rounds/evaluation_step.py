"""The step of the loop that evaluates a server state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shoal.engine.messages.wire import Evaluated, Failed
from shoal.engine.rounds.active_run import ActiveRun
from shoal.engine.rounds.units import EvaluateRound, Runner
from shoal.engine.settings.hardware import release_freed_memory
from shoal.engine.store.run_folder import RunError
from shoal.engine.workers.worker_processes import WorkerLost
from shoal.methods.contract.base import Server


@dataclass(frozen=True)
class EvaluationStep:
    """Evaluates server states.

    Args:
        active_run: the run.
        runner: executes units of work.
        slots: number of requests that are worked on at once.
        tell: logs an event (its kind, and facts by name).
    """

    active_run: ActiveRun
    runner: Runner
    slots: int
    tell: Callable[..., None]

    def evaluate(self, server: Server, *, final: bool) -> dict[str, float]:
        """Return the metrics of a state; empty between evaluations.

        Args:
            server: the state.
            final: whether it is the last of the run, which is always evaluated.

        Raises:
            RunError: the evaluation failed. WorkerLost: a worker was lost twice.
        """
        settings = self.active_run.opened.settings
        if not final and server.round % settings.evaluate.every:
            return {}
        if final:
            release_freed_memory()  # of the rounds' messages
        workers = self.slots
        if settings.workers.remote_files:
            workers = 1  # workers with files of their own do not see those of others
        unit = EvaluateRound(self.active_run.run.path, server.round, final, workers)
        answer = self.execute(unit)
        if isinstance(answer, Failed):
            raise RunError(f"round {server.round} could not be evaluated: {answer.error}")
        return dict(answer.metrics)

    def execute(self, unit: EvaluateRound) -> Evaluated | Failed:
        """Execute the unit of work, a second time if its worker was lost."""
        answer: Evaluated | Failed
        try:
            answer = self.runner.submit(unit).result()
        except WorkerLost as lost:
            self.tell("slot_lost", round=unit.round, message=str(lost))
            answer = self.runner.submit(unit).result()
        return answer
