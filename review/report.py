"""One self-contained HTML page per run: result, clusters, figures, clients, settings, lineage, events of note."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from jinja2 import Environment, PackageLoader, select_autoescape
from PIL import Image

from core.errors import ShoalError
from data.partition.table import load_partition
from engine.codec import write_atomic
from engine.run_folder import RunFolder
from review.cluster_sheets import FOLDER
from review.clusters import TABLE, cluster_facts
from review.result import run_result, shown_metrics

QUIET = ("started", "round_started", "round_finished", "client_finished")
SHEETS_BYTES = 1_500_000
"""At most so many bytes of contact sheets are embedded: with base64 and figures the page stays below 3 MB."""
HALF = 600
"""Pixels: of sheets up to this width two are shown beside each other."""
CROSSED = 30
"""Of clusters by clients at most so many rows and columns are shown."""
CLIENTS = 200
"""At most so many clients of the last round are listed."""


def write_report(run: RunFolder) -> Path:
    """Write report.html from the run folder; figures are embedded."""
    result = run_result(run)
    clients = last_clients(run)
    sheets, left = embedded_sheets(run)
    environment = Environment(loader=PackageLoader("review"), autoescape=select_autoescape())
    page = environment.get_template("report.html.j2").render(
        name=run.name,
        result=result,
        metrics=shown_metrics(result),
        facts=cluster_facts(run),
        clusters=cluster_rows(run),
        crossed=crossed(run),
        sheets=sheets,
        sheets_left=left,
        clients=clients[:CLIENTS],
        clients_left=max(0, len(clients) - CLIENTS),
        settings=yaml.safe_dump(run.settings().plain(), sort_keys=False),
        lineage=yaml.safe_dump(run.lineage(), sort_keys=False),
        events=[e for e in run.events() if e["event"] not in QUIET],
        figures=[
            (path.stem, base64.b64encode(path.read_bytes()).decode()) for path in sorted(run.figures.glob("*.png"))
        ],
    )
    path = run.path / "report.html"
    write_atomic(path, page.encode(), sync=False)
    return path


def last_clients(run: RunFolder) -> list[dict[str, Any]]:
    """The clients of the last round, a dictionary each, under their names where they have some."""
    clients = run.table("clients")
    if not len(clients):
        return []
    clients = clients[clients["round"] == clients["round"].max()].round(4).dropna(axis=1, how="all")
    try:
        names = load_partition(Path(run.lineage()["partition"]["folder"])).client_names
    except ShoalError:  # the folder was moved here without its data: numbers say enough
        names = ()
    if names and clients["client"].max() < len(names) and len(clients) > 1:
        clients["client"] = [names[k] for k in clients["client"]]
    return [{str(key): value for key, value in row.items()} for row in clients.to_dict("records")]


def cluster_table(run: RunFolder) -> pd.DataFrame | None:
    """The run's cluster table, where it has one."""
    return pd.read_parquet(run.path / TABLE) if (run.path / TABLE).exists() else None


def cluster_rows(run: RunFolder) -> list[dict[str, Any]]:
    """A row a cluster, empty ones too: size, share, clients, mean confidence, and its most frequent label."""
    table, facts = cluster_table(run), cluster_facts(run)
    if table is None or facts is None:
        return []
    labelled = "label" in table and table["label"].notna().any()
    rows = []
    for cluster in range(facts["clusters"]):
        own = table[table["cluster"] == cluster]
        row: dict[str, Any] = {
            "cluster": cluster,
            "samples": f"{len(own):,}",
            "share": f"{len(own) / len(table):.1%}",
            "clients": own["client_name"].nunique(),
            "mean confidence": f"{own['confidence'].mean():.3f}" if len(own) else "",
        }
        if labelled:
            shares = own["label"].value_counts(normalize=True)
            row["mostly label"] = f"{shares.index[0]} ({shares.iloc[0]:.0%})" if len(shares) else ""
        rows.append(row)
    return rows


def crossed(run: RunFolder) -> dict[str, Any] | None:
    """Samples by cluster and client: the largest `CROSSED` of either; None where there is no table."""
    table = cluster_table(run)
    if table is None or not table["client_name"].notna().any():
        return None
    held = table.dropna(subset=["client_name"])
    counts = pd.crosstab(held["cluster"], held["client_name"])
    clusters = sorted(counts.sum(axis=1).nlargest(CROSSED).index)
    largest = set(counts.sum().nlargest(CROSSED).index)
    # In the order of the partition, not of the alphabet: client 10 comes after client 9.
    order = held.drop_duplicates("client_name").sort_values("client")["client_name"]
    shown = [name for name in order if name in largest]
    return {
        "clients": shown,
        "rows": [(cluster, [int(counts.loc[cluster, name]) for name in shown]) for cluster in clusters],
        "most": max(1, int(counts.to_numpy().max())),
        "left": (len(counts) - len(clusters), counts.shape[1] - len(shown)),
    }


def embedded_sheets(run: RunFolder) -> tuple[list[tuple[str, str, bool]], int]:
    """Contact sheets of clusters, as many as `SHEETS_BYTES` hold, and how many are left out.

    Of each its name, a JPEG in base64, and whether two fit beside each other.
    """
    found: list[tuple[str, str, bool]] = []
    total = 0
    paths = sorted((run.figures / FOLDER).glob("cluster-*.png"), key=lambda path: int(path.stem.split("-")[1]))
    for path in paths:
        with Image.open(path) as opened, io.BytesIO() as file:
            opened.convert("RGB").save(file, format="JPEG", quality=80)
            content, half = file.getvalue(), opened.width <= HALF
        if total + len(content) > SHEETS_BYTES:
            break
        total += len(content)
        found.append((path.stem, base64.b64encode(content).decode(), half))
    return found, len(paths) - len(found)
