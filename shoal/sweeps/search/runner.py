"""A search from wherever it stopped to its end: propose a trial, execute it, store it; then write the page."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from shoal.engine.settings.run_settings import SettingsError
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.preparing import gather, prepare_data
from shoal.lifecycle.starting import find_like, new_run
from shoal.methods.contract.context import MethodError
from shoal.review.results.result import run_result
from shoal.sweeps.search.definition import CLUSTER_SCORES, SCORES, SearchDefinition, SearchError, check_search
from shoal.sweeps.search.proposals import most_trials, propose, settle
from shoal.sweeps.search.result import SearchResult, TrialRow, result_from_trials
from shoal.sweeps.search.store import folder_of, open_study
from shoal.sweeps.sweep import RunFailed, Sweep, Watch, open_sweep

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial


class Search:
    """A search that this process works on. Made by `open_search`.

    Args:
        definition: of the search.
        study: its settled trials.
        sweep: completes runs.
        data: digest of the data set that all runs are started on.
    """

    def __init__(self, definition: SearchDefinition, study: Study, sweep: Sweep, data: str) -> None:
        self.definition = definition
        self.study = study
        self.sweep = sweep
        self.data = data

    def left(self) -> range:
        """Return the numbers of the trials that are still to be executed."""
        return range(len(self.study.trials), most_trials(self.definition))

    def execute_next(self) -> TrialRow:
        """Propose the next trial, execute it and store it.

        Raises:
            SearchError: runs have no such score. ShoalError: a run could not begin. KeyboardInterrupt: the next call
                resumes the trial.
        """
        self.study.add_trial(execute(self, propose(self.definition, self.study.trials)))
        return self.result().trials[-1]

    def result(self) -> SearchResult:
        """Return the result of the trials so far."""
        return result_from_trials(self.definition, self.study.trials, str(folder_of(self.definition)))

    def finish(self) -> SearchResult:
        """Write the page, tables and figures, and log them to MLflow.

        Raises:
            SearchError: no trial has a score.
        """
        from shoal.sweeps.search.page import log_search, write_search  # here: matplotlib takes a second to import

        result = self.result()
        best = result.best_trial
        if best is None:
            why = next((trial.why for trial in result.trials if trial.why), "no trial was executed")
            raise SearchError(f"search {result.search!r}: no trial has a score; the first one: {why}")
        write_search(self.definition, result, best, self.study)
        log_search(self.definition, result)
        return result


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
    gather(settings)
    data = prepare_data(settings).manifest.digest
    with open_study(definition, data) as study, open_sweep(settings, watch) as sweep:
        yield Search(definition, study, sweep, data)


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
            run = find_like(settings, search.data) or new_run(settings)
        except (SettingsError, MethodError) as error:
            return settle(trial, "FAIL", scores, runs, str(error))
        runs.append(run.name)
        try:
            search.sweep.complete(run, f"trial {trial.number}")
            scores.append(score_of(run, search.definition.score))
        except RunFailed as error:
            return settle(trial, "FAIL", scores, runs, str(error))
    return settle(trial, "COMPLETE", scores, runs)


def score_of(run: RunFolder, name: str) -> float:
    """Return the score of a finished run after its last round.

    Args:
        run: the run's folder.
        name: of the score (`shoal.sweeps.search.definition.SCORES`).

    Raises:
        RunFailed: the score is not defined after the last round.
        SearchError: runs of this method have no such score. StoreError: a file of the run is damaged.
    """
    if name in CLUSTER_SCORES:
        quality = run_result(run).quality
        if not quality:
            reason = next((event.message for event in run.events() if event.kind == "clusters_skipped"), "no clusters")
            raise SearchError(f"the score {name!r} of run {run.name} cannot be computed: {reason}")
        value = quality.get(CLUSTER_SCORES[name], math.nan)
    else:
        rounds = run.table("rounds")
        if name not in rounds:
            usable = ", ".join(sorted({*rounds.columns} & {*SCORES})) or "another one, which it has"
            raise SearchError(f"run {run.name} has no score {name!r}: set score to one of {usable}")
        value = float(rounds[name].iloc[-1])
    if not math.isfinite(value):
        raise RunFailed(f"the score {name!r} is not defined after round {run.status().round}, the last one")
    return value
