"""The digests of a run's figures and report, so that a page is never shown, or made, of damaged files.

views.json holds `figures`, by path below the run's folder; `report`, of report.html; and `sources`, by view, a digest
of what the view was made of, so that only views that are missing or out of date are made.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from shoal.core.records import record_to_json
from shoal.engine.store.codec import StoreError, check_digest, file_digest, read_sealed, write_sealed
from shoal.engine.store.run_folder import RunFolder

VIEWS = "views.json"
REPORT = "report.html"
FIGURES = "figures"
"""The view that all figures and contact sheets are together; the other view is the report."""
FIGURE_SOURCES = ("settings.yaml", "rounds.parquet", "clients.parquet", "clusters.json")
"""The files of a run that its figures are drawn from, beside its final state."""
ROUTINE = frozenset(
    {
        "started",
        "resumed",
        "finished",
        "round_started",
        "round_finished",
        "client_finished",
        "clients_dropped",
        "pipeline_began",
        "pipeline_ended",
        "model_registered",
    }
)
"""Kinds of events that do not make a report out of date by themselves: they say that the run proceeded as it should."""


def keep_figures(run: RunFolder, source: str) -> None:
    """Keep the digests of the figures as they were drawn just now, and forget the report, which embeds them.

    Args:
        run: the run's folder.
        source: what they were drawn from (`source_of_figures`); empty where some could not be drawn.
    """
    figures = {str(path.relative_to(run.path)): file_digest(path) for path in figure_files(run)}
    write_sealed(run.path / VIEWS, {"figures": figures, "sources": {FIGURES: source}}, sync=False)


def sources(run: RunFolder) -> dict[str, str]:
    """Return what each view of a run was made of, by view; empty where views.json is missing or damaged."""
    try:
        return dict(read_sealed(run.path / VIEWS).get("sources", {}))
    except (StoreError, AttributeError):
        return {}


def keep_source(run: RunFolder, view: str, source: str) -> None:
    """Keep what a view was made of."""
    _update(run, sources={**sources(run), view: source})


def source_of_figures(run: RunFolder) -> str:
    """Return a digest of what the figures of a finished run are drawn from: tables, clusters, final state, and code."""
    files = {name: file_digest(run.path / name) for name in FIGURE_SOURCES if (run.path / name).exists()}
    return digest_of([files, run.status().weights_sha256, code_digest()])


def source_of_report(run: RunFolder) -> str:
    """Return a digest of what the report of a finished run shows: what figures show, lineage, and events of note."""
    events = [event.to_json() for event in run.events() if event.kind not in ROUTINE]
    shown = record_to_json(run.lineage()), record_to_json(run.status().tracking)
    return digest_of([source_of_figures(run), *shown, events])


def digest_of(content: Any) -> str:
    """Return the SHA-256 of JSON content, in hex."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


@cache
def code_digest() -> str:
    """Return a digest of the code that makes views: with another version of it they are made again."""
    folder = Path(__file__).parent.parent
    code = sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".j2"))
    return digest_of([file_digest(path) for path in code])


def figure_files(run: RunFolder) -> list[Path]:
    """Return the files below the figures folder."""
    return sorted(path for path in run.figures.rglob("*") if path.is_file())


def check_figures(run: RunFolder) -> None:
    """Compare the figures with their digests.

    Raises:
        StoreError: one was changed, or has gone missing.
    """
    if not (run.path / VIEWS).exists():
        return
    try:
        expected = read_sealed(run.path / VIEWS).get("figures", {})
        for name, sha256 in expected.items():
            check_digest(run.path / name, sha256)
    except (StoreError, AttributeError) as error:
        raise StoreError(f"run {run.name}: {error}; `shoal run --resume {run.name}` draws the figures again") from error


def drop_damaged_figures(run: RunFolder) -> None:
    """Remove the figures that are not as they were drawn, so that all of them are drawn again."""
    try:
        check_figures(run)
    except StoreError:
        for path in figure_files(run):
            path.unlink()
        (run.path / VIEWS).unlink(missing_ok=True)


def keep_report(run: RunFolder) -> None:
    """Keep the digest of the report as it was written just now."""
    _update(run, report=file_digest(run.path / REPORT))


def _update(run: RunFolder, **entries: Any) -> None:
    """Replace entries of views.json, which is made where it is missing."""
    path = run.path / VIEWS
    record = {}
    if path.exists():
        record = read_sealed(path)
    write_sealed(path, {**record, **entries}, sync=False)


def report_is_whole(run: RunFolder) -> bool:
    """Return whether the report is there as it was written."""
    try:
        check_digest(run.path / REPORT, read_sealed(run.path / VIEWS)["report"])
    except (StoreError, KeyError):
        return False
    return True
