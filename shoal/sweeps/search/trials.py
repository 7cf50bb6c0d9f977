"""One trial of a search: its runs, stopped early where their scores fall behind."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Any

from shoal.core.errors import ShoalError
from shoal.engine.settings.run_settings import Settings, SettingsError
from shoal.engine.store.run_events import Event
from shoal.engine.store.run_folder import RunFolder, RunStopped
from shoal.engine.store.status import STOPPED
from shoal.lifecycle.starting import new_run, runs_like
from shoal.methods.contract.context import MethodError
from shoal.review.mlflow_log.parent import ParentRun
from shoal.review.results.result import run_result
from shoal.sweeps.search.definition import CLUSTER_SCORES, SCORES, SearchDefinition, SearchError
from shoal.sweeps.search.proposals import Proposal
from shoal.sweeps.search.scores import Scorer
from shoal.sweeps.sweep import RunFailed, Sweep

COMPLETE = "COMPLETE"
PRUNED = "PRUNED"
FAIL = "FAIL"
"""States of a settled trial, in Optuna's words."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a trial.

    Attributes:
        state: COMPLETE, PRUNED or FAIL.
        scores: of its finished runs, one for each seed.
        runs: names of their folders, and of the run that was stopped or failed.
        why: why it was stopped or failed; else empty.
    """

    state: str
    scores: tuple[float, ...]
    runs: tuple[str, ...]
    why: str = ""

    @property
    def score(self) -> float | None:
        """The mean score over seeds; None where the trial is not complete."""
        if self.state == COMPLETE:
            return fmean(self.scores)
        return None

    def facts(self) -> dict[str, Any]:
        """Return what the store keeps beside the score, as JSON."""
        return {"scores": list(self.scores), "runs": list(self.runs), "why": self.why}


class NoScore(ShoalError):
    """A run finished without a score that can be used."""


@dataclass(frozen=True)
class TrialContext:
    """The things that all trials of a search share.

    Attributes:
        definition: of the search.
        sweep: completes runs.
        scorer: gives runs their scores.
        parent: the run in MLflow that the trials' runs are nested under.
    """

    definition: SearchDefinition
    sweep: Sweep
    scorer: Scorer
    parent: ParentRun


def execute(context: TrialContext, proposal: Proposal) -> Outcome:
    """Execute the runs of a trial: finished runs are used again, and runs that were cut short are resumed.

    A trial fails, and has no score, where its settings make no run or one of its runs fails by itself.

    Raises:
        SearchError: runs have no such score. ShoalError: a run could not begin. KeyboardInterrupt.
    """
    scores: list[float] = []
    runs: list[str] = []

    def outcome(state: str, why: str = "") -> Outcome:
        return Outcome(state, tuple(scores), tuple(runs), why)

    for number in range(context.definition.seeds):
        try:
            settings = context.definition.settings_with(proposal.values, number)
            run, curve = run_with(context, settings)
        except (SettingsError, MethodError) as error:
            return outcome(FAIL, str(error))
        runs.append(run.name)
        context.parent.adopt(run)
        # Only the run of the first seed may be stopped early: it has the same seed in every trial.
        judge = Judge(context, proposal, run, settings.rounds, decides=number == 0)
        try:
            scores.append(judge.final_score(curve))
        except RunStopped as stop:
            return outcome(PRUNED, str(stop))
        except (RunFailed, NoScore) as error:
            return outcome(FAIL, str(error))
    return outcome(COMPLETE)


def run_with(context: TrialContext, settings: Settings) -> tuple[RunFolder, dict[int, float]]:
    """Return a run with these settings, and its scores so far by round.

    An existing run is used, a finished one first, if the score of each of its rounds can be computed; else a new one.
    """
    existing = sorted(runs_like(settings), key=lambda run: not run.is_finished())
    for run in existing:
        curve = context.scorer.so_far(run)
        if curve is not None:
            return run, curve
    return new_run(settings), {}


class Judge:
    """Follows one run of a trial, and stops it where its score falls behind.

    Args:
        context: what the trials of the search share.
        proposal: the trial.
        run: its run.
        rounds: that the run is to have.
        decides: whether this run may stop the trial.
    """

    def __init__(
        self, context: TrialContext, proposal: Proposal, run: RunFolder, rounds: int, *, decides: bool
    ) -> None:
        self._context = context
        self._proposal = proposal
        self._run = run
        self._rounds = rounds
        self._decides = decides
        self._curve: dict[int, float] = {}

    def final_score(self, before: dict[int, float]) -> float:
        """Complete the run and return its score after the last round.

        Args:
            before: the scores that the run has already, by round.

        Raises:
            RunStopped: the score fell behind. RunFailed: the run failed by itself. NoScore: the last round has no
                score. SearchError: no round has one.
        """
        try:
            for round in sorted(before):
                self._add(round, before[round])
        except RunStopped as stop:
            self._record_stop(stop)
            raise
        self._context.sweep.complete(self._run, f"trial {self._proposal.number}", [self._observe])
        last = self._run.status().round
        if last in self._curve:
            return self._curve[last]
        name = self._context.scorer.name
        metrics = sorted(run_result(self._run).metrics)
        if self._curve or name in (*CLUSTER_SCORES, *metrics):
            raise NoScore(f"the score {name!r} is not defined after round {last}, the last one")
        usable = ", ".join(metric for metric in metrics if metric in SCORES)
        raise SearchError(
            f"run {self._run.name} has no score {name!r}: "
            + (f"set score to one of {usable}" if usable else "it has no score that a search can use")
        )

    def _observe(self, event: Event) -> None:
        if event.kind == "round_finished" and event.metrics:
            score = self._context.scorer.after_round(self._run, event.round, event.metrics)
            if score is not None:
                self._add(event.round, score)

    def _add(self, round: int, score: float) -> None:
        if round in self._curve:
            return  # a broken checkpoint was computed again, to the same bits
        self._curve[round] = score
        if not self._decides or not self._proposal.stop_after(round, score) or round >= self._rounds:
            return
        definition = self._context.definition
        raise RunStopped(
            f"search {definition.name} stopped trial {self._proposal.number} after round {round} of {self._rounds}: "
            f"its {definition.score} of {score:.4f} is behind that of other trials after as many rounds "
            f"({definition.pruner})",
            round,
        )

    def _record_stop(self, stop: RunStopped) -> None:
        """Record the stop in the folder of a run that nobody works on and that is neither finished nor stopped."""
        if self._run.is_finished() or self._run.status().state == STOPPED:
            return
        with self._run.locked():
            self._run.event("stopped", round=stop.round, message=str(stop))
            self._run.set_status(STOPPED, stop.round, str(stop))
