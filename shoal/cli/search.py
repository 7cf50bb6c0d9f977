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

    found = find_settings(load_search(path), trials, err)
    best_first = found.trials.loc[list(found.ranking)].drop(columns=["runs", "why"])
    out.print(frame_table(best_first.head(MAX_TRIALS), f"{len(best_first)} trials"))
    for sentence in found.caveats:
        say(sentence)
    say(f"best: trial {found.ranking[0]}, {found.judged_by} {found.score:.4f}")
    say(f"repeat it: {shoal_command()} run {found.page.with_name(BEST)}")
    say(f"page: {found.page}")
