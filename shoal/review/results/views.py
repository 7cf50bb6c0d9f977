"""The digests of a run's figures and report, so that a page is never shown, or made, of damaged files.

views.json holds for each view, figures and report, its files with their digests, and for figures a digest of what they
were drawn from, so that they are only drawn again where they are missing, damaged or out of date.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from shoal.engine.store.codec import StoreError, check_digest, file_digest, read_sealed, write_sealed
from shoal.engine.store.run_folder import RunFolder

VIEWS = "views.json"
REPORT = "report.html"
FIGURES = "figures"
"""The view that all figures and contact sheets are together; the other view is the report."""
FIGURE_SOURCES = ("settings.yaml", "rounds.parquet", "clients.parquet", "clusters.json")
"""The files of a run that its figures are drawn from, beside its final state."""


def keep_view(run: RunFolder, view: str, source: str = "") -> None:
    """Keep the digests of the files of a view as they were written just now, and what it was made of.

    Args:
        run: the run's folder.
        view: FIGURES or REPORT.
        source: of figures, from `source_of_figures`; empty where they are to be drawn again.
    """
    paths = run.figures.rglob("*") if view == FIGURES else [run.path / REPORT]
    files = {str(path.relative_to(run.path)): file_digest(path) for path in sorted(paths) if path.is_file()}
    write_sealed(run.path / VIEWS, {**kept_views(run), view: {"files": files, "source": source}}, sync=False)


def kept_views(run: RunFolder) -> dict[str, Any]:
    """Return what views.json holds, by view; empty where it is missing or damaged."""
    try:
        return dict(read_sealed(run.path / VIEWS))
    except (StoreError, TypeError, ValueError):
        return {}


def files_of(run: RunFolder, view: str) -> dict[str, str]:
    """Return the digests of the files of a view, by their names below the run's folder."""
    return dict(kept_views(run).get(view, {}).get("files", {}))


def damaged_files(run: RunFolder, view: str) -> list[Path]:
    """Return the files of a view that were changed, or have gone missing, since they were written."""
    damaged = []
    for name, sha256 in files_of(run, view).items():
        try:
            check_digest(run.path / name, sha256)
        except StoreError:
            damaged.append(run.path / name)
    return damaged


def is_whole(run: RunFolder, view: str, source: str | None = None) -> bool:
    """Return whether a view is there as it was written, and, if `source` is given, of what there is now."""
    kept = kept_views(run).get(view)
    return kept is not None and source in (None, kept["source"]) and not damaged_files(run, view)


def check_figures(run: RunFolder) -> None:
    """Refuse figures that were changed, or have gone missing, since they were drawn.

    Raises:
        StoreError: says how to draw them again.
    """
    try:
        if (run.path / VIEWS).exists():
            read_sealed(run.path / VIEWS)
        for name, sha256 in files_of(run, FIGURES).items():
            check_digest(run.path / name, sha256)
    except StoreError as error:
        raise StoreError(f"run {run.name}: {error}; `shoal run --resume {run.name}` draws the figures again") from error


def source_of_figures(run: RunFolder) -> str:
    """Return a digest of what the figures of a finished run are drawn from: tables, clusters, final state, and code."""
    files = {name: file_digest(run.path / name) for name in FIGURE_SOURCES if (run.path / name).exists()}
    return digest_of([files, run.status().weights_sha256, code_digest()])


def digest_of(content: Any) -> str:
    """Return the SHA-256 of JSON content, in hex."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


@cache
def code_digest() -> str:
    """Return a digest of the code that makes views: with another version of it they are made again."""
    folder = Path(__file__).parent.parent
    code = sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".j2"))
    return digest_of([file_digest(path) for path in code])
