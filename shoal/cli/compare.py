"""`shoal compare`: runs side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.console import err, out, say, table_of
from shoal.cli.options import AnyRun, Json, Runs, find_run
from shoal.core.errors import ShoalError

app = typer.Typer(add_completion=False)
WORDS = ("method", "data", "state", "rounds", "verdict")
"""What stands above the numbers of each run."""


@app.command(epilog="Example: shoal compare 20260131-120000_fedpnp_mnist_1a2b3c4d latest")
def compare(
    names: Runs = None,
    page: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="also write a page: numbers, curves, differing settings"),
    ] = None,
    any_run: AnyRun = False,
    as_json: Json = False,
) -> None:
    """Show runs side by side."""
    from shoal.api.listing import side_by_side
    from shoal.methods.scores.metrics import shown_in
    from shoal.review.results.result import run_result
    from shoal.review.results.runs import check_different, why_not_comparable
    from shoal.review.results.summary import name_of

    if not names:
        raise ShoalError("nothing to compare: name runs")
    found = [find_run(name, unfinished=any_run) for name in names]
    check_different(found)
    if page is not None:
        from shoal.review.pages.comparison_page import write_comparison

        err.print(f"page: {write_comparison(found, page)}", highlight=False, soft_wrap=True)
    if as_json:
        settings = [run.settings() for run in found]
        about = [{"method": each.method.name, "data": each.data.name} for each in settings]
        print(json.dumps([{**each, **run_result(run).to_json()} for each, run in zip(about, found, strict=True)]))
        return
    metrics = [metric.name for metric in shown_in("comparison")]
    table = side_by_side(found).filter([*WORDS, *metrics, "MB_up", "MB_down", "MB_d2d", "seconds"])
    rows = [(name_of(name), *values) for name, values in table.T.iterrows()]
    out.print(table_of(("run", *table.index), rows))
    reason = why_not_comparable(found)
    if reason is not None:
        say(reason)
