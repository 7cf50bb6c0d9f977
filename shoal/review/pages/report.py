"""One self-contained HTML page per run: result, clusters, clients, rounds, settings, lineage and events."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from PIL import Image

from shoal.engine.settings.addresses import masked
from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.client_names import client_names, named
from shoal.engine.store.codec import StoreError
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.index import title_of_method
from shoal.methods.registry import METHODS
from shoal.methods.scores.metrics import DESCRIBED
from shoal.methods.scores.verdict import in_words, site_sentence
from shoal.review.pages.cluster_sheets import FOLDER
from shoal.review.pages.embedding_figure import FILE as EMBEDDING
from shoal.review.pages.pages import in_base64, write_page
from shoal.review.pages.provenance import changed_rows, lineage_rows, repeat_command, run_files
from shoal.review.pages.window_pictures import INKS
from shoal.review.results.attempts import Made, attempt
from shoal.review.results.baseline_tables import baseline_rows, site_rows
from shoal.review.results.clusters import cluster_facts, read_clusters
from shoal.review.results.cross_tables import clusters_by_clients, confusion, labels_by_clients
from shoal.review.results.fonts import missing_letters
from shoal.review.results.next_step import next_step
from shoal.review.results.number_names import name_of, value_of
from shoal.review.results.result import WAYS, run_result, shown_metrics
from shoal.review.results.run_data import run_data
from shoal.review.results.stable_names import with_stable_numbers
from shoal.review.results.summary import summary_of
from shoal.review.results.views import REPORT, check_figures, keep_report

HIDDEN_EVENTS = ("started", "round_started", "round_finished", "client_finished", "clients_dropped")
MISSED_EVENTS = ("clients_dropped", "client_left_out", "client_refused")
"""Events that name clients that a round went on without."""
SHEETS_BYTES = 1_500_000
"""Bytes of embedded contact sheets: with base64 and a few figures the page stays below 3 MB."""
MAX_HALF_WIDTH = 600
"""Pixels: sheets up to this width are shown in pairs."""
MAX_ROUNDS_LISTED = 30
"""Missed rounds that are named for each client."""
MAX_CLIENTS = 200
"""Clients of the last round that are listed, and clients that missed rounds."""


def write_report(run: RunFolder, *, in_run_folder: bool = True) -> Path:
    """Write report.html from the run folder; figures are embedded.

    The report leaves out parts that the run does not have. It also leaves out parts that fail, and an event says which.

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

    def part(what: str, make: Callable[[], Made]) -> Made | None:
        return attempt(run, what, make, raised=(StoreError,))

    table = part("clusters", lambda: cluster_table(run))
    about_clusters: dict[str, Any] = {"channels": part("what the images show", lambda: drawn_channels(run))}
    if table is not None:
        about_clusters["facts"] = part("quality of clusters", lambda: cluster_facts(run))
        about_clusters["confused"] = part("clusters by labels", lambda: confusion(table))
        about_clusters["crossed"] = part("clusters by clients", lambda: clusters_by_clients(table))
        about_clusters |= part("null baselines", lambda: about_baselines(run, table)) or {}
    clients = part("clients", lambda: last_clients(run)) or []
    sheets, left = part("images of clusters", lambda: embedded_sheets(run)) or ([], 0)
    page = write_page(
        run.path / REPORT,
        "report.html.j2",
        name=run.name,
        summary=part("the summary", lambda: summary_of(run)),
        result=result,
        metrics=shown_metrics(result),
        described=DESCRIBED,
        clusters=part("the table of clusters", lambda: cluster_rows(run)),
        dealt=part("labels by clients", lambda: labels_by_clients(run)),
        sheets=sheets,
        sheets_left=left,
        clients=clients[:MAX_CLIENTS],
        clients_left=max(0, len(clients) - MAX_CLIENTS),
        missed=(part("clients that did not answer", lambda: missed_rounds(run)) or [])[:MAX_CLIENTS],
        next=part("what to do next", lambda: next_step(run, result)),
        missing_letters=part("letters", lambda: missing_letters(names_in_pictures(run, table))),
        chosen=part("settings that differ from the defaults", lambda: changed_rows(settings)),
        origins=part("origins", lambda: lineage_rows(run)),
        figures=part("figures", lambda: embedded_figures(run)),
        embedding=part(
            "the figure of features", lambda: [in_base64(path.read_bytes()) for path in run.figures.glob(EMBEDDING)]
        ),
        events=[event for event in run.whole_events() if event.kind not in HIDDEN_EVENTS],
        **about_clusters,
        **words_for(run, settings),
        **about_files(run, in_run_folder),
    )
    if in_run_folder:
        keep_report(run)
    return page


def words_for(run: RunFolder, settings: Settings) -> dict[str, Any]:
    """Return the heading, functions that name numbers, why the loss jumps by design, and all settings as YAML."""
    method = METHODS[settings.method.name]
    return {
        "heading": f"{title_of_method(settings.method.name)}: {settings.data.name}",
        "name_of": name_of,
        "value_of": value_of,
        "loss_note": method.loss_note(settings.method, settings.rounds),
        "settings": masked(yaml.safe_dump(settings.to_json(), sort_keys=False)),
    }


def about_files(run: RunFolder, in_run_folder: bool) -> dict[str, Any]:
    """Return the links to the run's other files, and the command that repeats the run."""
    if not in_run_folder:
        return {"files": [], "repeat": "dvc repro"}
    return {"files": run_files(run), "repeat": repeat_command(run)}


def about_baselines(run: RunFolder, table: pd.DataFrame) -> dict[str, Any]:
    """Return the tables of null baselines and of clusters by client, where the run has them.

    Args:
        run: the run's folder.
        table: its cluster table.
    """
    facts = cluster_facts(run)
    about: dict[str, Any] = {}
    if facts is not None and facts.comparison is not None:
        about["compared_samples"] = facts.comparison.samples
        about["space"] = in_words(facts.comparison.space)
        about["baselines"] = baseline_rows(facts.comparison)
    if facts is not None and facts.sites is not None:
        owned = table.dropna(subset=["client"]).drop_duplicates("client")
        names = dict(zip(owned["client"].astype(int), owned["client_name"], strict=True))
        about["site_words"] = site_sentence(facts.sites, names, facts.numbers)
        about["sites"] = site_rows(facts.sites, names, facts.numbers)
    return about


def last_clients(run: RunFolder) -> list[dict[str, Any]]:
    """Return the clients of the last round, a dictionary each, with their names where they have some."""
    clients = run.table("clients")
    if not len(clients):
        return []
    clients = clients[clients["round"] == clients["round"].max()].dropna(axis=1, how="all").drop(columns="round")
    unused = [f"bytes_{way}" for way in WAYS if not clients[f"bytes_{way}"].any()]
    names = client_names(run)
    rows = []
    for record in clients.drop(columns=unused).to_dict("records"):
        row = {name_of(str(key)): value_of(str(key), value) for key, value in record.items()}
        if len(clients) > 1:
            row["client"] = named(names, int(record["client"]))
        rows.append(row)
    return rows


def names_in_pictures(run: RunFolder, table: pd.DataFrame | None) -> list[str]:
    """Return the names that a run's pictures may show: of clients, labels and files."""
    names = list(client_names(run))
    for column in ("label", "file"):
        if table is not None and column in table:
            names += table[column].dropna().astype(str).unique().tolist()
    return names


def missed_rounds(run: RunFolder) -> list[dict[str, Any]]:
    """Return the clients that missed rounds for which they were chosen, by failure or dropout, most often first."""
    missed: dict[int, set[int]] = {}
    for event in run.whole_events():
        if event.kind in MISSED_EVENTS:
            for client in event.facts.get("clients", [event.facts.get("client")]):
                missed.setdefault(client, set()).add(event.round)
    names = client_names(run)
    rows = []
    for client, rounds in sorted(missed.items(), key=lambda item: (-len(item[1]), item[0])):
        listed = ", ".join(map(str, sorted(rounds)[:MAX_ROUNDS_LISTED]))
        if len(rounds) > MAX_ROUNDS_LISTED:
            listed += ", ..."
        rows.append({"client": named(names, client), "rounds missed": len(rounds), "which": listed})
    return rows


def cluster_table(run: RunFolder) -> pd.DataFrame | None:
    """Return the cluster table of a run with the numbers by which people know clusters; None where it has none."""
    table = read_clusters(run)
    if table is None:
        return None
    return with_stable_numbers(table)


def cluster_rows(run: RunFolder) -> list[dict[str, Any]]:
    """Return a row a cluster, empty ones too: size, share, clients, mean confidence, and its most frequent label."""
    table = cluster_table(run)
    facts = cluster_facts(run)
    if table is None or facts is None:
        return []
    labelled = "label" in table and table["label"].notna().any()
    rows = []
    for cluster in sorted(facts.numbers):
        samples = table[table["cluster"] == cluster]
        row: dict[str, Any] = {
            "cluster": cluster,
            "samples": f"{len(samples):,}",
            "share": f"{len(samples) / len(table):.1%}",
            "clients": samples["client_name"].nunique(),
            "mean confidence": "",
        }
        if len(samples):
            row["mean confidence"] = f"{samples['confidence'].mean():.3f}"
        if labelled:
            row["most frequent label"] = ""
            for label, share in samples["label"].value_counts(normalize=True).head(1).items():
                row["most frequent label"] = f"{label} ({share:.0%})"
        rows.append(row)
    return rows


def drawn_channels(run: RunFolder) -> list[tuple[str, str]]:
    """Return name and colour of each line of the windows that contact sheets show; none where they show images."""
    data = run_data(run)
    if data is None or data[0].manifest.kind != "series":
        return []
    names = data[0].manifest.extra.get("features", ())
    return [(str(name), f"rgb{INKS[number % len(INKS)]}") for number, name in enumerate(names)]


def embedded_sheets(run: RunFolder) -> tuple[list[tuple[str, str, bool]], int]:
    """Return the contact sheets that `SHEETS_BYTES` hold, and the number of those left out.

    Each sheet has its name, a JPEG in base64, and whether two fit beside each other.
    """
    sheets: list[tuple[str, str, bool]] = []
    total = 0
    paths = sorted((run.figures / FOLDER).glob("cluster-*.png"), key=lambda path: int(path.stem.split("-")[1]))
    for path in paths:
        with Image.open(path) as opened, io.BytesIO() as file:
            opened.convert("RGB").save(file, format="JPEG", quality=80)
            content = file.getvalue()
            half = opened.width <= MAX_HALF_WIDTH
        if total + len(content) > SHEETS_BYTES:
            break
        total += len(content)
        sheets.append((path.stem, in_base64(content), half))
    return sheets, len(paths) - len(sheets)


def embedded_figures(run: RunFolder) -> list[tuple[str, str]]:
    """Return the figures by name, each a PNG in base64: first those of all runs, then those of the method."""
    order = {name: number for number, name in enumerate(("scores", "losses", "bytes"))}
    drawn = [path for path in run.figures.glob("*.png") if path.name != EMBEDDING]
    drawn.sort(key=lambda path: (order.get(path.stem, len(order)), path.stem))
    return [(path.stem, in_base64(path.read_bytes())) for path in drawn]
