"""`shoal explain`: one cluster of a run over its clients."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from shoal.cli.console import cell
from shoal.core.errors import DataError
from shoal.engine.settings import places
from shoal.engine.store.run_folder import RunFolder
from shoal.review.served.explain import Explained, explain

SHOWN = 12
"""Of samples without a picture so many are listed, the most certain of all clients."""


def explain_command(out: Console, name: str, cluster: int, sheet: Path | None, as_json: bool) -> None:
    """Show the cluster, and draw its contact sheet where one is wanted.

    Args:
        out: standard output.
        name: the run: folder, name, latest.
        cluster: its number.
        sheet: where the contact sheet goes.
        as_json: only JSON on standard output.

    Raises:
        ShoalError: as `shoal.review.served.explain.explain`, or a sheet that cannot be drawn.
    """
    if sheet is not None and sheet.suffix.lower() != ".png":
        raise DataError(f"--out {sheet}: expected a name that ends in .png")
    found = explain(RunFolder.find(name, places.runs()), cluster)
    if sheet is not None:
        found.draw(sheet)
    if as_json:
        print(json.dumps(found.to_json() | ({"sheet": str(sheet)} if sheet is not None else {})))
        return
    out.print(clients_table(found))
    for line in found.lines:
        out.print(cell(line), soft_wrap=True)
    if sheet is not None:
        out.print(f"contact sheet: {sheet}", highlight=False, soft_wrap=True)
        return
    out.print(samples_table(found))
    if found.kind == "image":
        out.print("--out sheet.png draws them, a row a client", highlight=False)


def clients_table(found: Explained) -> Table:
    """The clients that have samples in the cluster."""
    labels = "mostly_label" in found.clients
    table = Table("client", title=found.title, title_justify="left")
    for heading in ("samples", "of the client's data", "of the cluster", "mean confidence"):
        table.add_column(heading, justify="right")
    if labels:
        table.add_column("mostly label")
    for row in found.clients.to_dict("records"):
        words = [f"{row['samples']:,}", f"{row['share_of_client']:.1%}", f"{row['share_of_cluster']:.1%}"]
        label = row.get("mostly_label")
        last = [cell(f"{label} ({row['label_share']:.0%})" if isinstance(label, str) else "")] if labels else []
        table.add_row(cell(row["client"]), *words, f"{row['mean_confidence']:.3f}", *last)
    return table


def samples_table(found: Explained) -> Table:
    """The samples nearest to the cluster's centre, or most certain of it."""
    near = "distance" in found.shown
    rows = found.shown[found.shown["shown"] == "certain"]
    rows = rows.sort_values("distance" if near else "confidence", ascending=near, kind="stable")[:SHOWN]
    columns = [name for name in rows.columns if name != "shown"]
    title = "nearest to its centre" if near else "most certain"
    table = Table(*(name.replace("_", " ") for name in columns), title=title, title_justify="left")
    for row in rows[columns].to_dict("records"):
        table.add_row(*map(cell, row.values()))
    return table
