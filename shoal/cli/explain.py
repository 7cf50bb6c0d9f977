"""`shoal explain`: one cluster of a run over its clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.console import cell, out, say, table_of
from shoal.cli.options import FinishedRun, Json
from shoal.core.errors import DataError

if TYPE_CHECKING:
    from rich.table import Table

    from shoal.review.served.explain import Explained


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
        drawn = {}
        if sheet is not None:
            drawn = {"sheet": str(sheet)}
        print(json.dumps(found.to_json() | drawn))
        return
    out.print(clients_table(found))
    for line in found.lines:
        out.print(cell(line), soft_wrap=True)
    if sheet is not None:
        say(f"contact sheet: {sheet}")
        return
    out.print(samples_table(found))
    if found.kind in ("image", "series"):
        say("--out sheet.png draws them, with a row for each client")


def clients_table(explained: Explained) -> Table:
    """Return the clients that have samples in the cluster."""
    headings = ["client", "samples", "of the client's data", "of the cluster", "mean confidence"]
    rows = []
    for row in explained.clients.to_dict("records"):
        shares = [f"{row[share]:.1%}" for share in ("share_of_client", "share_of_cluster")]
        rows.append([row["client"], row["samples"], *shares, row["mean_confidence"]])
    if "mostly_label" in explained.clients:
        headings.append("mostly label")
        labels = explained.clients[["mostly_label", "label_share"]].itertuples(index=False)
        for row, (label, share) in zip(rows, labels, strict=True):
            row.append(f"{label} ({share:.0%})" if isinstance(label, str) else "")
    return table_of(headings, rows, explained.title)


def samples_table(explained: Explained) -> Table:
    """Return the samples that are nearest to the cluster's centre, or most certain."""
    rows = explained.shown[explained.shown["shown"] == "certain"].drop(columns="shown")
    title = "most certain"
    if "distance" in rows:
        title = "nearest to its centre"
        rows = rows.sort_values("distance", kind="stable")
    else:
        rows = rows.sort_values("confidence", ascending=False, kind="stable")
    headings = [name.replace("_", " ") for name in rows.columns]
    return table_of(headings, rows[:MAX_SAMPLES].itertuples(index=False), title)
