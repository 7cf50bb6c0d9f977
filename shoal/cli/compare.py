"""`shoal compare`: runs side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.console import err, out, say, table_of
from shoal.cli.options import Json
from shoal.core.errors import ShoalError

app = typer.Typer(add_completion=False)
WORDS = ("method", "data", "state", "rounds", "verdict")
"""What stands above the numbers of each run."""


@app.command(epilog="Example: shoal compare 20260131-120000_fedpnp_mnist_1a2b3c4d latest")
def compare(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN...", help="runs: their folders, their names, or latest, the last finished one"),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="also write a page: numbers, curves, differing settings"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show runs side by side."""
    from shoal.api.listing import side_by_side
    from shoal.engine.store.run_folder import RunFolder
    from shoal.methods.scores.metrics import shown_in
    from shoal.review.results.number_names import name_of
    from shoal.review.results.result import run_result
    from shoal.review.results.runs import check_different, why_not_comparable

    if not names:
        raise ShoalError("nothing to compare: name runs")
    runs = [RunFolder.find(name, unfinished=False) for name in names]
    check_different(runs)
    if page is not None:
        from shoal.review.pages.comparison_page import write_comparison

        err.print(f"page: {write_comparison(runs, page)}", highlight=False, soft_wrap=True, markup=False)
    if as_json:
        about = [{"method": run.settings().method.name, "data": run.settings().data.name} for run in runs]
        print(json.dumps([one | run_result(run).to_json() for one, run in zip(about, runs, strict=True)]))
        return
    metrics = [metric.name for metric in shown_in("comparison")]
    table = side_by_side(runs).filter([*WORDS, *metrics, "MB_up", "MB_down", "MB_d2d", "seconds"])
    rows = [(name_of(name), *values) for name, values in table.T.iterrows()]
    out.print(table_of(("run", *table.index), rows))
    reason = why_not_comparable(runs)
    if reason is not None:
        say(reason)
