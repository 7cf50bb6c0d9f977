"""One self-contained HTML page per run: what came out, clusters, clients, rounds, settings, lineage, events of note."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from PIL import Image

from shoal.core.errors import ShoalError
from shoal.core.records import record_to_json
from shoal.data.partition.table import load_partition
from shoal.engine.settings.addresses import masked
from shoal.engine.store.checkpoint import manifests
from shoal.engine.store.codec import StoreError
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.scores.metrics import DESCRIBED
from shoal.review.mlflow_log.rounds import lost_rounds
from shoal.review.pages.cluster_sheets import FOLDER
from shoal.review.pages.embedding_figure import FILE as EMBEDDING
from shoal.review.pages.pages import embedded, write_page
from shoal.review.pages.provenance import chosen_settings, origins, repeat_command, run_files
from shoal.review.results.attempts import Made, attempted
from shoal.review.results.clusters import cluster_facts, read_clusters
from shoal.review.results.cross_tables import clusters_by_clients, confusion, labels_by_clients
from shoal.review.results.result import run_result, shown_metrics
from shoal.review.results.summary import summary_of
from shoal.review.results.views import check_figures, keep_report

QUIET = ("started", "round_started", "round_finished", "client_finished", "clients_dropped")
SHEETS_BYTES = 1_500_000
"""At most so many bytes of contact sheets are embedded: with base64 and figures the page stays below 3 MB."""
HALF = 600
"""Pixels: of sheets up to this width two are shown beside each other."""
FIGURES_BYTES = 500_000
"""Likewise of figures."""
LISTED = 30
"""Of the rounds that a client missed at most so many are named."""
CLIENTS = 200
"""At most so many clients of the last round are listed, and of those that missed rounds."""


def write_report(run: RunFolder, *, beside: bool = True) -> Path:
    """Write report.html from the run folder; figures are embedded.

    A part that the run does not have, or that cannot be made of it, is left out: of the latter an event tells. Of files
    that were damaged no report is made.

    Args:
        run: the run's folder.
        beside: whether the page will be read where it is written: it then links to the run's other files, and says
            how to repeat the run from them. Else it is a copy that a DVC stage keeps.

    Raises:
        StoreError: a file of the run is damaged.
    """
    check_figures(run)
    result, settings = run_result(run), run.settings()
    names = (settings.method.name, settings.data.name)

    def part(what: str, make: Callable[[], Made]) -> Made | None:
        return attempted(run, what, make, but=StoreError)

    table = part("clusters", lambda: cluster_table(run))
    clients = part("clients", lambda: last_clients(run)) or []
    sheets, left = part("images of clusters", lambda: embedded_sheets(run)) or ([], 0)
    figures, figures_left = part("figures", lambda: embedded_figures(run)) or ([], [])
    page = write_page(
        run.path / "report.html",
        "report.html.j2",
        name=run.name,
        heading=" on ".join(names),
        summary=part("the summary", lambda: summary_of(run)),
        result=result,
        metrics=shown_metrics(result),
        described=DESCRIBED,
        facts=part("quality of clusters", lambda: cluster_facts(run)) if table is not None else None,
        clusters=part("the table of clusters", lambda: cluster_rows(run)),
        confused=part("clusters by labels", lambda: None if table is None else confusion(table)),
        crossed=part("clusters by clients", lambda: None if table is None else clusters_by_clients(table)),
        dealt=part("labels by clients", lambda: labels_by_clients(run)),
        sheets=sheets,
        sheets_left=left,
        clients=clients[:CLIENTS],
        clients_left=max(0, len(clients) - CLIENTS),
        missed=(part("clients that did not answer", lambda: missed_rounds(run)) or [])[:CLIENTS],
        chosen=part("settings that were chosen", lambda: chosen_settings(settings)),
        settings=masked(yaml.safe_dump(settings.to_json(), sort_keys=False)),
        origins=part("origins", lambda: origins(run)),
        lineage=masked(yaml.safe_dump(record_to_json(run.lineage()))),
        files=run_files(run) if beside else [],
        repeat=repeat_command(run) if beside else "dvc repro",
        figures=figures,
        figures_left=figures_left,
        embedding=part("the figure of features", lambda: embedded_if_there(run.figures / EMBEDDING)),
        events=[event for event in run.whole_events() if event.kind not in QUIET],
    )
    if beside:
        keep_report(run)
    return page


def last_clients(run: RunFolder) -> list[dict[str, Any]]:
    """The clients of the last round, a dictionary each, under their names where they have some."""
    clients = run.table("clients")
    if not len(clients):
        return []
    clients = clients[clients["round"] == clients["round"].max()].round(4).dropna(axis=1, how="all")
    names = client_names(run)
    if names and clients["client"].max() < len(names) and len(clients) > 1:
        clients["client"] = [names[k] for k in clients["client"]]
    return [{str(key): value for key, value in row.items()} for row in clients.to_dict("records")]


def client_names(run: RunFolder) -> Sequence[str]:
    """What the clients are called, by id; nothing where they have no names."""
    try:
        return load_partition(run.folder_of("partition")).client_names
    except ShoalError:  # the folder was moved here without its data: numbers say enough
        return ()


def missed_rounds(run: RunFolder) -> list[dict[str, Any]]:
    """The clients that were chosen for a round and left out of it, by how often: whether they failed or dropped out."""
    rounds = run.table("rounds")
    if not len(rounds) or not rounds["left_out"].sum():
        return []
    missed: dict[int, list[int]] = {}
    known = lost_rounds(run)

    def refuse(round: int, why: str) -> None:
        # A copy that a DVC stage keeps has the last manifest alone.
        if round not in known and RoundPaths(run.path, round).checkpoint.exists():
            raise StoreError(f"run {run.name}: {why}; `shoal run --resume {run.name}` goes on without round {round}")

    for manifest in manifests(run, int(rounds["round"].max()), refuse):
        for client in manifest.record.left_out if manifest.record else ():
            missed.setdefault(client, []).append(manifest.round)
    names = client_names(run)
    return [
        {
            "client": names[client] if client < len(names) else client,
            "rounds missed": len(those),
            "which": ", ".join(map(str, those[:LISTED])) + (", ..." if len(those) > LISTED else ""),
        }
        for client, those in sorted(missed.items(), key=lambda item: (-len(item[1]), item[0]))
    ]


def cluster_table(run: RunFolder) -> pd.DataFrame | None:
    """The run's cluster table, where it has one."""
    return read_clusters(run)


def cluster_rows(run: RunFolder) -> list[dict[str, Any]]:
    """A row a cluster, empty ones too: size, share, clients, mean confidence, and its most frequent label."""
    table, facts = cluster_table(run), cluster_facts(run)
    if table is None or facts is None:
        return []
    labelled = "label" in table and table["label"].notna().any()
    rows = []
    for cluster in range(facts.clusters):
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


def embedded_if_there(path: Path) -> str | None:
    """A file in base64; None where there is none."""
    return embedded(path) if path.exists() else None


def embedded_figures(run: RunFolder) -> tuple[list[tuple[str, str]], list[str]]:
    """Figures by name, each a PNG in base64, as many as `FIGURES_BYTES` hold, and the names of the others.

    What every run has comes first, then what the method drew of it.
    """
    found: list[tuple[str, str]] = []
    left = []
    total = 0
    place = {name: number for number, name in enumerate(("scores", "losses", "bytes"))}
    drawn = [path for path in run.figures.glob("*.png") if path.name != EMBEDDING]
    for path in sorted(drawn, key=lambda path: (place.get(path.stem, len(place)), path.stem)):
        content = path.read_bytes()
        if total + len(content) > FIGURES_BYTES:
            left.append(path.name)
            continue
        total += len(content)
        found.append((path.stem, base64.b64encode(content).decode()))
    return found, left
