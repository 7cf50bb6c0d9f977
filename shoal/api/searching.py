"""A search over settings from Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from shoal.engine.settings.private_home import private_files
from shoal.engine.store.run_events import Observer
from shoal.engine.store.run_folder import RunFolder

if TYPE_CHECKING:
    from rich.console import Console

    from shoal.sweeps.search.definition import SearchDefinition
    from shoal.sweeps.search.result import SearchResult


@dataclass(frozen=True)
class FoundSettings:
    """The result of a search.

    Attributes:
        best: the best trial's settings, as `shoal.run` takes them.
        score: that trial's.
        judged_by: what the score is.
        trials: a row a trial: number, state, score, its settings, its runs, and why it failed.
        ranking: numbers of the trials, the best first.
        caveats: sentences on how far to trust it.
        page: the HTML page.
    """

    best: dict[str, Any]
    score: float
    judged_by: str
    trials: pd.DataFrame
    ranking: tuple[int, ...]
    caveats: list[str]
    page: Path

    @classmethod
    def from_search(cls, definition: SearchDefinition, result: SearchResult) -> FoundSettings:
        """Return the settings that a search with a finished trial found."""
        from shoal.sweeps.search.page import FILE, trials_frame
        from shoal.sweeps.search.result import best_settings, caveats

        best = result.ranked[0]
        assert best.score is not None
        return cls(
            best=best_settings(definition, best),
            score=best.score,
            judged_by=result.score,
            trials=trials_frame(result),
            ranking=result.ranking,
            caveats=caveats(definition, result),
            page=Path(result.folder) / FILE,
        )


@private_files()
def search(
    definition: str | Path | Mapping[str, Any], *, trials: int | None = None, progress: bool = True
) -> FoundSettings:
    """Try settings of a run, trial after trial, and say which scored best (docs/search-over-settings.md).

    The same call resumes the search; once all its trials are there, it only shows them.

    Args:
        definition: a search file, or what one holds: `name`, `settings`, `vary` and the rest.
        trials: how many trials to make; None: as the definition says.
        progress: show bars, as in `shoal.run`.

    Raises:
        ShoalError: the definition is wrong (before any work); Optuna is not installed; or no trial has a score.
        KeyboardInterrupt: it was interrupted; the same call resumes it.

    >>> import shoal
    >>> lr = {"name": "lr", "settings": {"method": "fedpnp"}, "vary": {"local.lr": {"choices": [0.01, 0.1]}}}
    >>> found = shoal.search(lr)  # doctest: +SKIP
    >>> shoal.run(found.best, seed=100)  # doctest: +SKIP
    """
    from rich.console import Console

    from shoal.sweeps.search.definition import load_search, make_search

    if isinstance(definition, Mapping):
        checked = make_search(dict(definition))
    else:
        checked = load_search(Path(definition))
    return find_settings(checked, trials, Console(stderr=True) if progress else None)


def find_settings(definition: SearchDefinition, trials: int | None, console: Console | None) -> FoundSettings:
    """Search as `search` does; with a console show which runs are made, and bars."""
    from shoal.lifecycle.progress import progress
    from shoal.sweeps.search.runner import run_search

    if trials is not None:
        definition = definition.model_copy(update={"trials": trials})
    if console is None:
        return FoundSettings.from_search(definition, run_search(definition))
    with progress(console) as observe:

        def watch(label: str, run: RunFolder) -> Observer:
            console.print(f"{label}: {run.name}", highlight=False, markup=False, soft_wrap=True)
            return observe

        try:
            return FoundSettings.from_search(definition, run_search(definition, watch))
        except KeyboardInterrupt:
            console.print("interrupted; the same call resumes the search", highlight=False)
            raise
