"""A search from wherever it stopped to its end: propose a trial, execute it, store it; then write the page.

A run is stopped early where its scores fall behind.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shoal.engine.settings.run_settings import Settings, SettingsError
from shoal.engine.store.run_events import Event
from shoal.engine.store.run_folder import RunFolder, RunStopped
from shoal.engine.store.status import STOPPED
from shoal.lifecycle.starting import new_run, runs_like
from shoal.methods.contract.context import MethodError
from shoal.review.mlflow_log.parent import ParentRun
from shoal.review.results.result import run_result
from shoal.sweeps.search.definition import CLUSTER_SCORES, SCORES, SearchDefinition, SearchError, check_search
from shoal.sweeps.search.proposals import most_trials, propose, settle
from shoal.sweeps.search.result import SearchResult, TrialRow, result_from_trials
from shoal.sweeps.search.scores import Scorer
from shoal.sweeps.search.store import folder_of, open_study
from shoal.sweeps.sweep import RunFailed, Sweep, Watch, open_sweep, parent_run

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial


class Search:
    """A search that this process works on. Made by `open_search`.

    Args:
        definition: of the search.
        study: its settled trials.
        sweep: completes runs.
        parent: the run in MLflow that the trials' runs are nested under.
    """

    def __init__(self, definition: SearchDefinition, study: Study, sweep: Sweep, parent: ParentRun) -> None:
        self.definition = definition
        self.study = study
        self.sweep = sweep
        self.parent = parent
        self.scorer = Scorer(definition.score, sweep.pool.call)

    def left(self) -> range:
        """Return the numbers of the trials that are still to be executed."""
        return range(len(self.study.trials), most_trials(self.definition))

    def execute_next(self) -> TrialRow:
        """Propose the next trial, execute it and store it; the page shows all trials so far.

        Raises:
            SearchError: runs have no such score. ShoalError: a run could not begin. KeyboardInterrupt: the next call
                resumes the trial.
        """
        self.study.add_trial(execute(self, propose(self.definition, self.study.trials)))
        result = self.result()
        self.write(result)
        return result.trials[-1]

    def result(self) -> SearchResult:
        """Return the result of the trials so far."""
        return result_from_trials(self.definition, self.study.trials, str(folder_of(self.definition)))

    def finish(self) -> SearchResult:
        """Log page, tables and figures to MLflow.

        Raises:
            SearchError: no trial has a score.
        """
        from shoal.sweeps.search.page import log_search

        result = self.result()
        if result.best is None:
            why = next((trial.why for trial in result.trials if trial.why), "no trial was executed")
            raise SearchError(f"search {result.search!r}: no trial has a score; the first one: {why}")
        log_search(self.parent, self.definition, result, self.write(result))
        return result

    def write(self, result: SearchResult) -> dict[str, float]:
        """Write the page, tables and figures of a result with a score; return the importance of each setting."""
        from shoal.sweeps.search.page import write_search  # here: matplotlib takes a second to import

        best = result.best_trial
        return {} if best is None else write_search(self.definition, result, best, self.study)


@contextlib.contextmanager
def open_search(definition: SearchDefinition, watch: Watch | None = None) -> Iterator[Search]:
    """Open a search with its workers; until the end no other process can open it.

    Args:
        definition: of the search.
        watch: makes the observer of a run, given a label and the run.

    Raises:
        ShoalError: the definition cannot be executed, or another process works on the search.
    """
    check_search(definition)
    settings = definition.settings_with({})
    key = ("shoal.search", definition.name)
    tags = {"shoal.score": definition.score, "shoal.sampler": definition.sampler, "shoal.pruner": definition.pruner}
    with (
        open_study(definition) as study,
        parent_run(settings, key, f"search {definition.name}", tags) as parent,
        open_sweep(settings, watch) as sweep,
    ):
        yield Search(definition, study, sweep, parent)


def run_search(definition: SearchDefinition, watch: Watch | None = None) -> SearchResult:
    """Execute the trials that are left, and write the page; arguments and errors as in `open_search`."""
    with open_search(definition, watch) as search:
        for _ in search.left():
            search.execute_next()
        return search.finish()


def execute(search: Search, trial: Trial) -> FrozenTrial:
    """Execute the runs of a trial: finished runs are used again, and runs that were cut short are resumed.

    A trial fails, and has no score, where its settings make no run or one of its runs fails by itself.

    Raises:
        SearchError: runs have no such score. ShoalError: a run could not begin. KeyboardInterrupt.
    """
    scores: list[float] = []
    runs: list[str] = []
    for number in range(search.definition.seeds):
        try:
            settings = search.definition.settings_with(trial.params, number)
            run, curve = run_with(search, settings)
        except (SettingsError, MethodError) as error:
            return settle(trial, "FAIL", scores, runs, str(error))
        runs.append(run.name)
        search.parent.adopt(run)
        # Only the run of the first seed may be stopped early: it has the same seed in every trial.
        judge = Judge(search, trial, run, settings.rounds, decides=number == 0)
        try:
            scores.append(judge.final_score(curve))
        except RunStopped as stop:
            return settle(trial, "PRUNED", scores, runs, str(stop))
        except RunFailed as error:
            return settle(trial, "FAIL", scores, runs, str(error))
    return settle(trial, "COMPLETE", scores, runs)


def run_with(search: Search, settings: Settings) -> tuple[RunFolder, dict[int, float]]:
    """Return a run with these settings, and its scores so far by round.

    An existing run is used, a finished one first, if the score of each of its rounds can be computed; else a new one.
    """
    for run in sorted(runs_like(settings), key=lambda run: not run.is_finished()):
        curve = search.scorer.so_far(run)
        if curve is not None:
            return run, curve
    return new_run(settings), {}


@dataclass(frozen=True)
class Judge:
    """Follows one run of a trial, and stops it where its score falls behind.

    Attributes:
        search: the search.
        trial: the trial.
        run: its run.
        rounds: that the run is to have.
        decides: whether this run may stop the trial.
        curve: its scores so far, by round.
    """

    search: Search
    trial: Trial
    run: RunFolder
    rounds: int
    decides: bool
    curve: dict[int, float] = field(default_factory=dict)

    def final_score(self, before: dict[int, float]) -> float:
        """Complete the run and return its score after the last round.

        Args:
            before: the scores that the run has already, by round.

        Raises:
            RunStopped: the score fell behind. RunFailed: the run failed by itself, or its last round has no score.
            SearchError: no round has one.
        """
        try:
            for round in sorted(before):
                self._add(round, before[round])
        except RunStopped as stop:
            self._record_stop(stop)
            raise
        self.search.sweep.complete(self.run, f"trial {self.trial.number}", [self._observe])
        last = self.run.status().round
        if last in self.curve:
            return self.curve[last]
        name = self.search.scorer.name
        metrics = sorted(run_result(self.run).metrics)
        if self.curve or name in (*CLUSTER_SCORES, *metrics):
            raise RunFailed(f"the score {name!r} is not defined after round {last}, the last one")
        usable = ", ".join(metric for metric in metrics if metric in SCORES) or "another one, which it has"
        raise SearchError(f"run {self.run.name} has no score {name!r}: set score to one of {usable}")

    def _observe(self, event: Event) -> None:
        if event.kind == "round_finished" and event.metrics:
            score = self.search.scorer.after_round(self.run, event.round, event.metrics)
            if score is not None:
                self._add(event.round, score)

    def _add(self, round: int, score: float) -> None:
        if round in self.curve:
            return  # a broken checkpoint was computed again, to the same bits
        self.curve[round] = score
        if not self.decides:
            return
        self.trial.report(score, round)
        if round >= self.rounds or not self.trial.should_prune():
            return
        definition = self.search.definition
        raise RunStopped(
            f"search {definition.name} stopped trial {self.trial.number} after round {round} of {self.rounds}: "
            f"its {definition.score} of {score:.4f} is behind that of other trials after as many rounds "
            f"({definition.pruner})",
            round,
        )

    def _record_stop(self, stop: RunStopped) -> None:
        """Record the stop in the folder of a run that nobody works on and that is neither finished nor stopped."""
        if self.run.is_finished() or self.run.status().state == STOPPED:
            return
        with self.run.locked():
            self.run.event("stopped", round=stop.round, message=str(stop))
            self.run.set_status(STOPPED, stop.round, str(stop))
