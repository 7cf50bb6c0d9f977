"""A search from wherever it stopped to its end: propose a trial, execute it, store it; then write the page."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from shoal.sweeps.search.definition import SearchDefinition, SearchError, check_search
from shoal.sweeps.search.mlflow_result import log_result
from shoal.sweeps.search.proposals import most_trials, propose
from shoal.sweeps.search.result import SearchResult, TrialRow, result_from_trials
from shoal.sweeps.search.scores import Scorer
from shoal.sweeps.search.store import SearchStore, open_store
from shoal.sweeps.search.trials import TrialContext, execute
from shoal.sweeps.sweep import Watch, open_sweep, parent_run


class Search:
    """A search that this process works on. Made by `open_search`.

    Args:
        store: its settled trials.
        context: what its trials share.
    """

    def __init__(self, store: SearchStore, context: TrialContext) -> None:
        self._store = store
        self._context = context

    def left(self) -> range:
        """Return the numbers of the trials that are still to be executed."""
        return range(len(self._store.trials()), most_trials(self._context.definition))

    def execute_next(self) -> TrialRow:
        """Propose the next trial, execute it and store it; the page shows all trials so far.

        Raises:
            SearchError: runs have no such score. ShoalError: a run could not begin. KeyboardInterrupt: the next call
                resumes the trial.
        """
        proposal = propose(self._context.definition, self._store.trials())
        outcome = execute(self._context, proposal)
        self._store.add(proposal.to_stored(outcome.state, outcome.score, outcome.facts()))
        result = self.result()
        if result.best is not None and self.left():
            self.write(result)
        return result.trials[-1]

    def result(self) -> SearchResult:
        """Return the result of the trials so far."""
        return result_from_trials(self._context.definition, self._store.trials(), str(self._store.folder))

    def finish(self) -> SearchResult:
        """Write the page, tables and figures, and log them to MLflow.

        Raises:
            SearchError: no trial has a score.
        """
        result = self.result()
        if result.best is None:
            why = next((trial.why for trial in result.trials if trial.why), "no trial was executed")
            raise SearchError(f"search {result.search!r}: no trial has a score; the first one: {why}")
        log_result(self._context.parent, self._context.definition, result, self.write(result))
        return result

    def write(self, result: SearchResult) -> dict[str, float]:
        """Write the page, tables and figures of a result; return the importance of each setting."""
        from shoal.sweeps.search.page import write_search  # here: matplotlib takes a second to import

        return write_search(self._context.definition, result, self._store.study, left=len(self.left()))


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
        open_store(definition) as store,
        parent_run(settings, key, f"search {definition.name}", tags) as parent,
        open_sweep(settings, watch) as sweep,
    ):
        scorer = Scorer(definition.score, sweep.pool.call)
        yield Search(store, TrialContext(definition, sweep, scorer, parent))


def run_search(definition: SearchDefinition, watch: Watch | None = None) -> SearchResult:
    """Execute the trials that are left, and write the page; arguments and errors as in `open_search`."""
    with open_search(definition, watch) as search:
        for _ in search.left():
            search.execute_next()
        return search.finish()
