"""One trial of a search: its runs, stopped early where their scores say so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from shoal.core.errors import ShoalError
from shoal.engine.cluster.pool_interface import Pool
from shoal.engine.rounds.loop import Observer
from shoal.engine.rounds.outcomes import RoundFailed
from shoal.engine.settings.run_settings import Settings, SettingsError
from shoal.engine.store.run_folder import FAILED, FINISHED, STOPPED, RunError, RunFolder, RunStopped
from shoal.lifecycle.driving import drive
from shoal.lifecycle.starting import new_run, runs_like
from shoal.methods.contract.context import MethodError
from shoal.review.mlflow_log.parent import ParentRun
from shoal.review.results.result import run_result
from shoal.sweeps.definition import OF_CLUSTERS, SCORES, SearchDefinition, SearchError
from shoal.sweeps.proposals import Proposal
from shoal.sweeps.scores import Scorer

Watch = Callable[[str, RunFolder], Observer | None]
"""Given a label and a run: an observer of that run, where one is wanted."""
COMPLETE, PRUNED, FAIL = "COMPLETE", "PRUNED", "FAIL"
"""What becomes of a trial, in Optuna's words."""
SHOWN = "search_shown"
"""Event of a run that a search carried out: report and MLflow have all of it."""


@dataclass(frozen=True)
class Outcome:
    """What became of a trial.

    Attributes:
        state: COMPLETE, PRUNED or FAIL.
        scores: of its finished runs, a seed each.
        runs: names of their folders, and of one that was stopped or failed.
        why: why it was stopped or failed; else empty.
    """

    state: str
    scores: tuple[float, ...]
    runs: tuple[str, ...]
    why: str = ""

    @property
    def score(self) -> float | None:
        """The trial's score, the mean over seeds; None where it is not complete."""
        return fmean(self.scores) if self.state == COMPLETE else None

    def facts(self) -> dict[str, Any]:
        """What is kept of it beside the score, as JSON."""
        return {"scores": list(self.scores), "runs": list(self.runs), "why": self.why}


class NoScore(ShoalError):
    """A run came to its end without a score that can be used."""


@dataclass(frozen=True)
class Workshop:
    """What all trials of a search are carried out with.

    Attributes:
        definition: of the search.
        pool: the workers.
        scorer: gives runs their scores.
        parent: what the runs are nested under in MLflow.
        watch: given a label and a run, an observer of that run.
    """

    definition: SearchDefinition
    pool: Pool
    scorer: Scorer
    parent: ParentRun
    watch: Watch | None = None


def execute(shop: Workshop, proposal: Proposal) -> Outcome:
    """The runs of a trial: those that are there are used, those that were cut short are gone on with.

    A run that cannot be made of these settings, or fails by itself, makes the trial a failed one: it has no score.

    Args:
        shop: what it is carried out with.
        proposal: the trial.

    Raises:
        SearchError: runs have no such score. ShoalError: a run could not begin. KeyboardInterrupt.
    """
    scores: list[float] = []
    runs: list[str] = []
    for number in range(shop.definition.seeds):
        try:
            settings = shop.definition.settings_with(proposal.values, number)
            run, curve = run_of(shop, settings)
        except (SettingsError, MethodError) as error:
            return Outcome(FAIL, tuple(scores), tuple(runs), str(error))
        runs.append(run.name)
        shop.parent.adopt(run)
        # The runs of the first seed decide alone whether a trial is stopped: only they are alike in all trials.
        judge = Judge(shop, proposal, run, settings.rounds, curve, decides=not number)
        try:
            scores.append(judge.to_its_end())
        except RunStopped as stop:
            return Outcome(PRUNED, tuple(scores), tuple(runs), str(stop))
        except (RoundFailed, RunError, NoScore) as error:
            if not isinstance(error, NoScore) and run.status()["state"] != FAILED:
                raise  # it could not begin
            return Outcome(FAIL, tuple(scores), tuple(runs), str(error))
    return Outcome(COMPLETE, tuple(scores), tuple(runs))


def run_of(shop: Workshop, settings: Settings) -> tuple[RunFolder, dict[int, float]]:
    """A run of these settings of which every score can be known, and its scores so far: one that is there, or new."""
    there = sorted(runs_like(settings), key=lambda run: not run.is_finished())
    for run in there:
        curve = shop.scorer.so_far(run)
        if curve is not None:
            return run, curve
    return new_run(settings), {}


class Judge:
    """Follows one run of a trial, and stops it where the search has seen enough.

    Args:
        shop: what it is carried out with.
        proposal: the trial.
        run: the run.
        rounds: that it is to have.
        curve: its scores so far, by round.
        decides: whether the trial may be stopped by this run.
    """

    def __init__(
        self,
        shop: Workshop,
        proposal: Proposal,
        run: RunFolder,
        rounds: int,
        curve: dict[int, float],
        *,
        decides: bool,
    ) -> None:
        self._shop, self._proposal, self._run = shop, proposal, run
        self._rounds, self._decides = rounds, decides
        self._before = curve
        self._curve: dict[int, float] = {}

    def to_its_end(self) -> float:
        """What is left of the run.

        Returns:
            Its score after the last round.

        Raises:
            RunStopped: the search has seen enough. NoScore: the last round has no score. SearchError: no round has one.
        """
        try:
            for round in sorted(self._before):
                self._add(round, self._before[round])
        except RunStopped as stop:
            self._keep_stopped(stop)
            raise
        if self._run.status()["state"] != FINISHED or not self._shown():
            label = f"trial {self._proposal.number}"
            watch = self._shop.watch(label, self._run) if self._shop.watch else None
            drive(self._run, slots=self._shop.pool, observers=[*([watch] if watch else []), self._observe])
            self._run.event(SHOWN)
        last = int(self._run.status()["round"])
        name = self._shop.scorer.name
        if last not in self._curve:
            known = sorted(run_result(self._run).metrics)
            if not self._curve and name not in (*OF_CLUSTERS, *known):
                raise SearchError(
                    f"run {self._run.name} has no score {name!r}: set score to one that it has, of "
                    f"{', '.join(each for each in known if each in SCORES) or 'which there is none'}"
                )
            raise NoScore(f"the score {name!r} is not defined after round {last}, the last one")
        return self._curve[last]

    def _observe(self, event: dict[str, Any]) -> None:
        if event["event"] == "round_finished" and event["metrics"]:
            score = self._shop.scorer.after_round(self._run, event["round"], event["metrics"])
            if score is not None:
                self._add(event["round"], score)

    def _add(self, round: int, score: float) -> None:
        if round in self._curve:
            return  # told before a broken checkpoint was computed again, to the same bits
        self._curve[round] = score
        if not self._decides or not self._proposal.stop_after(round, score) or round >= self._rounds:
            return
        definition = self._shop.definition
        raise RunStopped(
            f"search {definition.name} stopped trial {self._proposal.number} after round {round} of {self._rounds}: "
            f"its {definition.score} of {score:.4f} is behind what other trials had then ({definition.pruner})",
            round,
        )

    def _keep_stopped(self, stop: RunStopped) -> None:
        """Say so in the folder of a run that nobody works on, where it does not say so already or is finished."""
        if self._run.status()["state"] not in (FINISHED, STOPPED):
            with self._run.locked():
                self._run.event("stopped", round=stop.round, message=str(stop))
                self._run.set_status(STOPPED, stop.round, str(stop))

    def _shown(self) -> bool:
        return any(event["event"] == SHOWN for event in self._run.events())
