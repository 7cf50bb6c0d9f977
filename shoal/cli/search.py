"""`shoal search`: a search over settings, from wherever it stopped to its end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.console import err, frame_table, out, say, shoal_command

app = typer.Typer(add_completion=False)
MAX_TRIALS = 10
"""Trials in the table."""


@app.command(epilog="Example: shoal search search.yaml --trials 50")
def search(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="a search file, see docs/search-over-settings.md")],
    trials: Annotated[
        int | None, typer.Option(min=1, help="number of trials, with those of earlier calls (default: as in the file)")
    ] = None,
) -> None:
    """Search for good settings, or resume a search. By default it needs no labels; a score such as acc needs them."""
    from shoal.engine.workers.worker_processes import start_fork_server

    start_fork_server()  # worker processes start while the rest is imported
    from shoal.api.searching import find_settings
    from shoal.sweeps.search.definition import load_search
    from shoal.sweeps.search.page import BEST

    search_result = find_settings(load_search(path), trials, err)
    best_first = search_result.trials.loc[list(search_result.ranking)].drop(columns=["runs", "why"])
    out.print(frame_table(best_first.head(MAX_TRIALS), f"{len(best_first)} trials"))
    for sentence in search_result.caveats:
        say(sentence)
    say(f"best: trial {search_result.ranking[0]}, {search_result.judged_by} {search_result.score:.4f}")
    say(f"repeat it: {shoal_command()} run {search_result.page.with_name(BEST)}")
    say(f"page: {search_result.page}")
