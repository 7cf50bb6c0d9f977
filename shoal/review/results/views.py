"""The digests of a run's figures, so that no page is made of damaged ones.

views.json holds the digests of figures, and of what all of them were drawn from, so that they are only drawn again
where they are missing, damaged or out of date.
"""

from __future__ import annotations

import json

from shoal.core.digests import file_digest
from shoal.engine.store.code_version import shoal_version
from shoal.engine.store.codec import StoreError, check_digest, read_sealed, write_sealed
from shoal.engine.store.run_folder import RunFolder
from shoal.review.results.result import run_data

VIEWS = "views.json"
REPORT = "report.html"
FIGURE_SOURCES = ("settings.yaml", "rounds.parquet", "clients.parquet", "clusters.json")
"""The files of a run that its figures are drawn from, beside its final state."""


def keep_figures(run: RunFolder, source: str) -> None:
    """Keep the digests of a run's figures and contact sheets as they were drawn just now.

    Args:
        run: the run's folder.
        source: from `source_of_figures`; empty where they are to be drawn again.
    """
    paths = sorted(path for path in run.figures.rglob("*") if path.is_file())
    files = {str(path.relative_to(run.path)): file_digest(path) for path in paths}
    write_sealed(run.path / VIEWS, {"files": files, "source": source}, sync=False)


def check_figures(run: RunFolder) -> None:
    """Refuse figures that were changed, or have gone missing, since they were drawn.

    Raises:
        StoreError: says how to draw them again.
    """
    if not (run.path / VIEWS).exists():
        return
    try:
        for name, sha256 in read_sealed(run.path / VIEWS).get("files", {}).items():
            check_digest(run.path / name, sha256)
    except StoreError as error:
        raise StoreError(f"run {run.name}: {error}; `shoal run --resume {run.name}` draws the figures again") from error


def are_figures_whole(run: RunFolder, source: str) -> bool:
    """Return whether the figures are as they were drawn from this source, or from another, where the data are gone."""
    try:
        check_figures(run)
        drawn_from = read_sealed(run.path / VIEWS).get("source")
    except StoreError:
        return False
    return drawn_from == source or (bool(drawn_from) and run_data(run) is None)


def source_of_figures(run: RunFolder) -> str:
    """Return what the figures of a finished run are drawn from, in digests: tables, clusters, final state, and code."""
    files = {name: file_digest(run.path / name) for name in FIGURE_SOURCES if (run.path / name).exists()}
    return json.dumps([files, run.status().weights_sha256, shoal_version().sha256])
