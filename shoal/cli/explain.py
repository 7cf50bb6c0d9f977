"""`shoal explain`: one cluster of a run over its clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.console import cell, frame_table, out, say
from shoal.cli.options import FinishedRun, Json
from shoal.core.errors import DataError

app = typer.Typer(add_completion=False)
MAX_SAMPLES = 12
"""Samples that are listed where no sheet is drawn."""


@app.command(epilog="Example: shoal explain latest --cluster 3 --out sheet.png")
def explain(
    name: FinishedRun,
    cluster: Annotated[int, typer.Option(min=0, help="number of the cluster, as in the run's report")],
    sheet: Annotated[
        Path | None, typer.Option("--out", help="for images: contact sheet to write, .png, with a row for each client")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show one cluster client by client: its samples, and how certain the model is of them."""
    from shoal.engine.settings import places
    from shoal.engine.store.run_folder import RunFolder
    from shoal.review.served.explain import explain as explain_cluster

    if sheet is not None and sheet.suffix.lower() != ".png":
        raise DataError(f"--out {sheet}: expected a name that ends in .png")
    found = explain_cluster(RunFolder.find(name, places.runs(), unfinished=False), cluster)
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
    if "distance" in certain:
        title = "nearest to its centre"
        certain = certain.sort_values("distance", kind="stable")
    else:
        title = "most certain"
        certain = certain.sort_values("confidence", ascending=False, kind="stable")
    out.print(frame_table(certain.head(MAX_SAMPLES), title))
    if found.kind in ("image", "series"):
        say("--out sheet.png draws them, with a row for each client")
