"""A search from wherever it stands to its end: propose a trial, carry it out, keep it; then show what was found."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from shoal.engine.cluster.pools import open_pool
from shoal.engine.settings.hardware import resolve_device
from shoal.sweeps.definition import SearchDefinition, SearchError, check_search
from shoal.sweeps.importance import Importance
from shoal.sweeps.proposals import most_trials, propose
from shoal.sweeps.result import SearchResult, TrialRow, result_of
from shoal.sweeps.scores import Scorer
from shoal.sweeps.store import SearchStore, open_store
from shoal.sweeps.tracking import log_result, parent_of
from shoal.sweeps.trials import Watch, Workshop, execute


class Search:
    """A search that this process works on. Made by `open_search`.

    Args:
        store: its settled trials.
        shop: what its trials are carried out with.
    """

    def __init__(self, store: SearchStore, shop: Workshop) -> None:
        self._store, self._shop = store, shop

    def left(self) -> range:
        """The numbers of the trials that are still to be carried out."""
        return range(len(self._store.trials()), most_trials(self._shop.definition))

    def carry_out_next(self) -> TrialRow:
        """Propose the next trial, carry it out and keep it; the page shows what there is so far.

        Raises:
            SearchError: runs have no such score. ShoalError: a run could not begin. KeyboardInterrupt: the trial is
                gone on with the next time.
        """
        proposal = propose(self._shop.definition, self._store.trials())
        outcome = execute(self._shop, proposal)
        self._store.add(proposal.settled(outcome.state, outcome.score, outcome.facts()))
        result = self.result()
        if result.best is not None and self.left():
            self.show(result)
        return result.trials[-1]

    def result(self) -> SearchResult:
        """What it came to so far."""
        return result_of(self._shop.definition, self._store.trials(), str(self._store.folder))

    def finish(self) -> SearchResult:
        """Write the page, tables and figures, and log them to MLflow.

        Raises:
            SearchError: no trial has a score.
        """
        result = self.result()
        if result.best is None:
            why = next((trial.why for trial in result.trials if trial.why), "no trial was carried out")
            raise SearchError(f"search {result.search!r}: no trial has a score; the first: {why}")
        log_result(self._shop.parent, self._shop.definition, result, self.show(result))
        return result

    def show(self, result: SearchResult) -> list[Importance]:
        """Write the page of what there is, and what belongs to it; the importance of each setting."""
        from shoal.sweeps.page import write_search  # here: matplotlib takes a second to import

        return write_search(self._shop.definition, result, left=len(self.left()))


@contextlib.contextmanager
def open_search(definition: SearchDefinition, watch: Watch | None = None) -> Iterator[Search]:
    """A search with its workers, held for this process until the end.

    Args:
        definition: of the search.
        watch: given a label and a run, an observer of that run.

    Raises:
        ShoalError: the definition cannot be carried out, or another process works on the search.
    """
    check_search(definition)
    settings = definition.settings_with({})
    with open_store(definition) as store:
        parent = parent_of(definition, settings)
        try:
            with open_pool(settings.workers, resolve_device(settings.workers)) as pool:
                yield Search(store, Workshop(definition, pool, Scorer(definition.score, pool.call), parent, watch))
        except BaseException:
            parent.stop()
            raise


def run_search(definition: SearchDefinition, watch: Watch | None = None) -> SearchResult:
    """All trials that are still to be carried out, and the page of what was found; arguments as of `open_search`."""
    with open_search(definition, watch) as search:
        for _ in search.left():
            search.carry_out_next()
        return search.finish()
