"""One self-contained HTML page per run: result, clusters, clients, rounds, settings, lineage and events."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from PIL import Image

from shoal.engine.settings.addresses import masked
from shoal.engine.store.embedded import embedded_from
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.index import title_of_method
from shoal.methods.registry import METHODS
from shoal.methods.scores.metrics import DESCRIBED
from shoal.methods.scores.verdict import in_words
from shoal.review.pages.cluster_sheets import FOLDER, INKS, named_clusters
from shoal.review.pages.embedding_figure import FILE as EMBEDDING
from shoal.review.pages.pages import in_base64, write_page
from shoal.review.pages.provenance import changed_rows, repeat_command, run_files, shown_page
from shoal.review.pages.site_effects import about_sites, twin_columns
from shoal.review.results.clusters import cluster_facts
from shoal.review.results.cross_tables import clusters_by_clients, confusion
from shoal.review.results.next_step import next_step
from shoal.review.results.number_names import name_of, value_of
from shoal.review.results.result import run_data, run_result, shown_metrics
from shoal.review.results.summary import baseline_rows, summary_of
from shoal.review.results.views import REPORT, check_figures

HIDDEN_EVENTS = ("started", "round_started", "round_finished", "client_finished", "clients_dropped")
SHEETS_BYTES = 1_500_000
"""Bytes of embedded contact sheets: with base64 and a few figures the page stays below 3 MB."""
MAX_HALF_WIDTH = 600
"""Pixels: sheets up to this width are shown in pairs."""
FIRST = ("scores", "losses", "bytes")
"""The figures that stand before the method's own."""


def write_report(run: RunFolder, *, in_run_folder: bool = True) -> Path:
    """Write report.html from the run folder; figures are embedded.

    The report leaves out parts that the run does not have.

    Args:
        run: the run's folder.
        in_run_folder: whether the page stays in the run's folder: it then links to the other files there, and says how
            to repeat the run from them. Otherwise it is a copy that a DVC stage keeps.

    Raises:
        StoreError: a file of the run is damaged.
    """
    check_figures(run)
    result = run_result(run)
    settings = run.settings()
    method = METHODS[settings.method.name]
    return write_page(
        run.path / REPORT,
        "report.html.j2",
        name=run.name,
        heading=f"{title_of_method(settings.method.name)}: {settings.data.name}",
        name_of=name_of,
        value_of=value_of,
        result=result,
        metrics=shown_metrics(result),
        described=DESCRIBED,
        loss_note=method.loss_note,
        settings=masked(yaml.safe_dump(settings.to_json(), sort_keys=False)),
        repeat=repeat_command(run) if in_run_folder else "dvc repro",
        files=run_files(run) if in_run_folder else [],
        events=[event for event in run.whole_events() if event.kind not in HIDDEN_EVENTS],
        in_base64=in_base64,
        masked=masked,
        **parts_of(run),
    )


def parts_of(run: RunFolder) -> dict[str, Any]:
    """Return the parts of the report by their names in the template; a run does not have all of them.

    Raises:
        StoreError: a file of the run is damaged.
    """
    facts = cluster_facts(run)
    table = named_clusters(run)
    parts: dict[str, Any] = {
        "summary": summary_of(run),
        "next": next_step(run, run_result(run)),
        "clients_of_rounds": run.table("clients"),
        "by_site": (facts.by_site if facts is not None else None) or {},
        "chosen": changed_rows(run.settings()),
        "lineage": run.lineage(),
        "tracking": run.status().tracking,
        "page": shown_page(run),
        "folder_of": run.folder_of,
        "figures": listed_figures(run),
    }
    if (data := run_data(run)) is not None:
        parts["images"] = embedded_from(data[0].manifest)
    if facts is None or table is None:
        return parts
    twins = []
    if comparison := facts.comparison:
        twins = [tuple(facts.numbers[k] for k in pair) for pair in comparison.twins]
        parts["baselines"] = baseline_rows(comparison)
        parts["space"] = in_words(comparison.space)
    return parts | {
        "facts": facts,
        "table": table,
        "labelled": "label" in table and table["label"].notna().any(),
        "largest": largest,
        "channels": drawn_channels(run),
        "sheets": embedded_sheets(run, twins),
        "embedding": list(run.figures.glob(EMBEDDING)),
        "confused": confusion(table),
        "crossed": clusters_by_clients(table),
        "sites": about_sites(run, table, facts),
        "twins": twin_columns(run, table, twins),
    }


def largest(names: pd.Series) -> str:
    """Return the most frequent name with its share; empty where there is none."""
    return "".join(f"{name} ({share:.0%})" for name, share in names.value_counts(normalize=True).head(1).items())


def drawn_channels(run: RunFolder) -> list[tuple[str, str]]:
    """Return name and colour of each line of the windows that contact sheets show; none where they show images."""
    data = run_data(run)
    if data is None or data[0].manifest.kind != "series":
        return []
    names = data[0].manifest.extra.get("features", ())
    return [(str(name), f"rgb{INKS[number % len(INKS)]}") for number, name in enumerate(names)]


def embedded_sheets(run: RunFolder, twins: Sequence[tuple[int, ...]]) -> dict[str, Any]:
    """Return the contact sheets that `SHEETS_BYTES` hold, and the number of those left out.

    Each sheet has its name, a JPEG in base64, and whether two fit beside each other. Clusters that may be one kind
    (`twins`) come first.
    """
    sheets = []
    total = 0
    paths = {int(path.stem.split("-")[1]): path for path in (run.figures / FOLDER).glob("cluster-*.png")}
    first = [cluster for pair in twins for cluster in pair if cluster in paths]
    for cluster in dict.fromkeys([*first, *sorted(paths)]):
        path = paths[cluster]
        file = io.BytesIO()
        with Image.open(path) as opened:
            opened.convert("RGB").save(file, format="JPEG", quality=80)
            half = opened.width <= MAX_HALF_WIDTH
        total += file.tell()
        if total > SHEETS_BYTES:
            break
        sheets.append((path.stem, in_base64(file.getvalue()), half))
    return {"shown": sheets, "left": len(paths) - len(sheets)}


def listed_figures(run: RunFolder) -> list[Path]:
    """Return the figures: first those of all runs, then those of the method."""
    drawn = (path for path in run.figures.glob("*.png") if path.name != EMBEDDING)
    return sorted(drawn, key=lambda path: ([*FIRST, path.stem].index(path.stem), path))
