"""The digests of a run's figures and report, so that a page is never shown, or made, of damaged files.

views.json holds `figures`, by path below the run's folder, and `report`, of report.html; runs of version 0.1.0 have no
such file.
"""

from __future__ import annotations

from pathlib import Path

from shoal.engine.store.codec import StoreError, check_digest, file_digest, read_sealed, write_sealed
from shoal.engine.store.run_folder import RunFolder

VIEWS = "views.json"
REPORT = "report.html"


def keep_figures(run: RunFolder) -> None:
    """Keep the digests of the figures as they were drawn just now; the report is to be written again."""
    found = {str(path.relative_to(run.path)): file_digest(path) for path in figure_files(run)}
    write_sealed(run.path / VIEWS, {"figures": found}, sync=False)


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


def keep_report(run: RunFolder) -> None:
    """Keep the digest of the report as it was written just now."""
    path = run.path / VIEWS
    known = read_sealed(path) if path.exists() else {}
    write_sealed(path, {**known, "report": file_digest(run.path / REPORT)}, sync=False)


def report_is_whole(run: RunFolder) -> bool:
    """Return whether the report is there as it was written; of older runs whether it is there."""
    path = run.path / REPORT
    if not path.exists():
        return False
    if not (run.path / VIEWS).exists():
        return True
    try:
        check_digest(path, read_sealed(run.path / VIEWS).get("report"))
    except StoreError:
        return False
    return True
