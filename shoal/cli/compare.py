"""`shoal compare`: runs side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.console import err, out, results_table
from shoal.cli.options import AnyRun, Json
from shoal.core.errors import ShoalError

app = typer.Typer(add_completion=False)


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
    log: Annotated[
        str | None, typer.Option(metavar="NAME", help="also log to MLflow: a run of this name with the runs nested")
    ] = None,
    any_run: AnyRun = False,
    as_json: Json = False,
) -> None:
    """Show runs side by side."""
    from shoal.engine.settings import places
    from shoal.engine.store.run_folder import RunFolder
    from shoal.review.results.comparison import check_different, compared_run, why_not_comparable

    names = names or []
    if not names:
        raise ShoalError("nothing to compare: name runs")
    found = [RunFolder.find(name, places.runs(), unfinished=any_run) for name in names]
    check_different(found)
    results = [compared_run(run) for run in found]
    if page is not None:
        from shoal.review.pages.comparison_page import write_comparison

        err.print(f"page: {write_comparison(found, page)}", highlight=False, soft_wrap=True)
    if log is not None:
        from shoal.review.mlflow_log.comparisons import log_comparison

        log_comparison(log, found)
    if as_json:
        print(json.dumps([each.to_json() for each in results]))
        return
    out.print(results_table(results))
    reason = why_not_comparable(found)
    if reason is not None:
        out.print(reason, highlight=False, soft_wrap=True)
