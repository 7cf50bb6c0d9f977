"""`shoal explain`: one cluster of a run over its clients, or what the run's server reads of single rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.console import cell, frame_table, out, say
from shoal.cli.options import FinishedRun, Json
from shoal.core.errors import DataError

if TYPE_CHECKING:
    from shoal.engine.store.run_folder import RunFolder
    from shoal.review.served.explain import Explained

app = typer.Typer(add_completion=False)
MAX_SAMPLES = 12
"""Samples that are listed where no sheet is drawn."""
TITLES = {"distance": "nearest to its centre", "confidence": "most certain"}
"""What is said of these by the column that orders them: the first that the table has."""


@app.command(epilog="Example: shoal explain latest --cluster 3 --out sheet.png")
def explain(
    name: FinishedRun,
    cluster: Annotated[int | None, typer.Option(min=0, help="number of the cluster, as in the run's report")] = None,
    sheet: Annotated[
        Path | None, typer.Option("--out", help="for images: contact sheet to write, .png, with a row for each client")
    ] = None,
    server_sees: Annotated[
        bool, typer.Option("--server-sees", help="play the server: which share of the rows its messages give away")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show one cluster client by client, with how certain the model is of its samples, or what the server reads."""
    from shoal.engine.store.run_folder import RunError, RunFolder
    from shoal.review.served.explain import explain as explain_cluster

    if sheet is not None and sheet.suffix.lower() != ".png":
        raise DataError(f"--out {sheet}: expected a name that ends in .png")
    run = RunFolder.find(name, unfinished=False)
    if server_sees:
        if not run.is_finished():
            raise RunError(f"run {run.name} is not finished: `shoal run --resume {run.name}` finishes it")
        show_server_view(run, as_json=as_json)
        return
    if cluster is None:
        raise DataError("name a cluster of the run (--cluster 3), or ask what its server reads (--server-sees)")
    show_cluster(explain_cluster(run, cluster), sheet, as_json=as_json)


def show_cluster(found: Explained, sheet: Path | None, *, as_json: bool) -> None:
    """Print a cluster, and draw it if a file is named."""
    if sheet is not None:
        found.draw(sheet)
    if as_json:
        print(json.dumps(found.to_json() | ({} if sheet is None else {"sheet": str(sheet)})))
        return
    out.print(frame_table(found.clients, found.title))
    for line in found.lines:
        out.print(cell(line), soft_wrap=True)
    if sheet is not None:
        say(f"contact sheet: {sheet}")
        return
    certain = found.shown[found.shown["shown"] == "certain"].drop(columns="shown")
    column = next(name for name in TITLES if name in certain)
    nearest = certain.sort_values(column, ascending=column == "distance", kind="stable").head(MAX_SAMPLES)
    out.print(frame_table(nearest, TITLES[column]))
    if found.kind in ("image", "series"):
        say("--out sheet.png draws them, with a row for each client")


def show_server_view(run: RunFolder, *, as_json: bool) -> None:
    """Print which shares of the clients' rows the server of a run reads."""
    from shoal.review.served.server_view import NEAR, server_view

    view = server_view(run)
    if as_json:
        print(json.dumps(view._asdict()))
        return
    where = "in every column" if view.columns == 1 else f"in {view.columns:.0%} of the columns"
    out.print(f"The server of run {run.name} reads {view.exact:.1%} of {view.rows:,} rows exactly, {where}.")
    out.print(
        f"Within {NEAR:g} standard deviations {where}: {view.near:.1%}; by guessing, each row as the centre of "
        f"its cluster or of its client: {view.guessed:.1%}. Taken for read, and no client's: {view.wrong:,} rows."
    )
    if run.settings().privacy.secret:
        out.print("The messages have noise: how near a server comes that knows all other rows, docs/privacy.md says.")
