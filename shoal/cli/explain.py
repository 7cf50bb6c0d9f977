"""`shoal explain`: one cluster of a run over its clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from shoal.cli.console import cell, out, say
from shoal.cli.options import FinishedRun, Json
from shoal.core.errors import DataError

if TYPE_CHECKING:
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


def clients_table(found: Explained) -> Table:
    """Return the clients that have samples in the cluster."""
    labels = "mostly_label" in found.clients
    table = Table("client", title=found.title, title_justify="left")
    for heading in ("samples", "of the client's data", "of the cluster", "mean confidence"):
        table.add_column(heading, justify="right")
    if labels:
        table.add_column("mostly label")
    for row in found.clients.to_dict("records"):
        numbers = [f"{row['samples']:,}", f"{row['share_of_client']:.1%}", f"{row['share_of_cluster']:.1%}"]
        numbers.append(f"{row['mean_confidence']:.3f}")
        cells = [cell(row["client"]), *map(cell, numbers)]
        if labels:
            label = row["mostly_label"]
            cells.append(cell(f"{label} ({row['label_share']:.0%})" if isinstance(label, str) else ""))
        table.add_row(*cells)
    return table


def samples_table(found: Explained) -> Table:
    """Return the samples that are nearest to the cluster's centre, or most certain."""
    near = "distance" in found.shown
    rows = found.shown[found.shown["shown"] == "certain"]
    rows = rows.sort_values("distance" if near else "confidence", ascending=near, kind="stable")[:MAX_SAMPLES]
    columns = [name for name in rows.columns if name != "shown"]
    title = "most certain"
    if near:
        title = "nearest to its centre"
    table = Table(*(name.replace("_", " ") for name in columns), title=title, title_justify="left")
    for row in rows[columns].to_dict("records"):
        table.add_row(*map(cell, row.values()))
    return table
