"""`shoal search`: a search over settings, from wherever it stopped to its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.console import err, out, say, shoal_command, table_of
from shoal.cli.options import Json

if TYPE_CHECKING:
    from rich.table import Table

    from shoal.engine.store.run_events import Observer
    from shoal.engine.store.run_folder import RunFolder
    from shoal.sweeps.search.result import SearchResult


app = typer.Typer(add_completion=False)
MAX_TRIALS = 10
"""Trials in the table."""


@app.command(epilog="Example: shoal search search.yaml --trials 50")
def search(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="a search file, see docs/search-over-settings.md")],
    trials: Annotated[
        int | None, typer.Option(min=1, help="number of trials, with those of earlier calls (default: as in the file)")
    ] = None,
    as_json: Json = False,
) -> None:
    """Search for good settings, or resume a search. By default it needs no labels; a score such as acc needs them."""
    from shoal.engine.workers.worker_processes import start_fork_server

    start_fork_server()  # worker processes start while the rest is imported
    from shoal.lifecycle.progress import progress
    from shoal.sweeps.search.caveats import caveats, value_in_words
    from shoal.sweeps.search.definition import load_search
    from shoal.sweeps.search.page import BEST, FILE
    from shoal.sweeps.search.runner import run_search

    definition = load_search(path)
    if trials is not None:
        definition = definition.model_copy(update={"trials": trials})
    with progress(err) as observe:

        def watch(label: str, run: RunFolder) -> Observer:
            err.print(f"{label}: {run.name}", highlight=False, soft_wrap=True)
            return observe

        try:
            result = run_search(definition, watch)
        except KeyboardInterrupt:
            err.print("interrupted; the same command resumes the search", highlight=False)
            raise
    if as_json:
        print(json.dumps(result.to_json()))
        return
    out.print(trials_table(result))
    for sentence in caveats(definition, result):
        say(sentence)
    best = result.ranked[0]
    values = ", ".join(f"{path} {value_in_words(value)}" for path, value in best.values.items())
    say(f"best: trial {best.number}, {result.score} {best.last_score:.4f}: {values}")
    say(f"repeat it: {shoal_command()} run {result.folder}/{BEST}")
    say(f"page: {result.folder}/{FILE}")


def trials_table(result: SearchResult) -> Table:
    """Return the best trials as a table."""
    from shoal.sweeps.search.caveats import value_in_words

    trials = result.ranked[:MAX_TRIALS]
    rows = [(trial.number, trial.state, trial.score, *map(value_in_words, trial.values.values())) for trial in trials]
    headings = ("trial", "state", result.score, *trials[0].values)
    return table_of(headings, rows, f"{len(result.trials)} trials: {result.summary()}")
