"""A run's files in MLflow: settings, lineage, tables, report and figures.

A tag that is written after the files holds a digest of each logged group of files: logging again reads the files, but
uploads nothing.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.codec import file_digest
from shoal.engine.store.run_folder import RunFolder
from shoal.review.mlflow_log.uploads import longer_timeout
from shoal.review.results import views
from shoal.review.results.clusters import CENTRES, FACTS, TABLE

FILES_LOGGED = "mlflow.shoal.files_logged"
"""Tag: digests of the files that MLflow has, by group."""
CLIENT_FILES = ("events.jsonl", "clients.parquet", TABLE, FACTS, CENTRES)
"""Files with data of single clients."""
REPORT = "Report.html"
"""The report among the artifacts: MLflow lists capital letters first, so that it stands above all other files."""


def log_files(client: Any, found: Any, tags: Mapping[str, str], run: RunFolder, settings: Settings) -> dict[str, str]:
    """Log the files of a run that MLflow does not have in their present state.

    With `tracking.clients` false, files with data of single clients are left out: only rounds, settings and the model
    are logged.

    Args:
        client: an MlflowClient.
        found: the MLflow run.
        tags: of the MLflow run, under their present names.
        run: the run's folder.
        settings: of the run.

    Returns:
        Tags to set afterwards.
    """
    groups = groups_of_files(client, found.info.run_id, run, with_clients=settings.tracking.clients)
    before = logged_before(tags)
    now = {name: digest_of(run, paths) for name, (paths, _) in groups.items()}
    for name, (paths, log) in groups.items():
        if before.get(name) != now[name]:
            with longer_timeout(*paths):
                log()
    if before == now:
        return {}
    return tags_of(now)


def groups_of_files(
    client: Any, run_id: str, run: RunFolder, *, with_clients: bool
) -> dict[str, tuple[list[Path], Callable[[], None]]]:
    """Return the groups of files that MLflow shall have, by name: the files of each, and a function that logs them.

    Args:
        client: an MlflowClient.
        run_id: the MLflow run.
        run: the run's folder.
        with_clients: whether files with data of single clients may be logged.
    """
    names = ["settings.yaml", "lineage.json", "rounds.parquet"]
    if with_clients:
        names += CLIENT_FILES
    groups: dict[str, tuple[list[Path], Callable[[], None]]] = {}
    for path in (run.path / name for name in names):
        if path.exists():
            groups[path.name] = [path], partial(client.log_artifact, run_id, str(path))
    if not with_clients:
        return groups
    report = run.path / views.REPORT
    if report.exists():
        groups[REPORT] = [report], lambda: log_report(client, run_id, report)
    figures = views.figure_files(run)
    if any(path.suffix == ".png" for path in figures):
        groups["figures"] = figures, partial(client.log_artifacts, run_id, str(run.figures), "figures")
    return groups


def tags_of(digests: Mapping[str, str]) -> dict[str, str]:
    """Return the tags of an MLflow run for logged groups of files, by their digests."""
    return {FILES_LOGGED: json.dumps(digests)}


def logged_before(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the digests by group in the tag of an MLflow run."""
    try:
        found = json.loads(tags.get(FILES_LOGGED, "{}"))
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return found


def digest_of(run: RunFolder, paths: list[Path]) -> str:
    """Return a short hex digest of the names and bytes of some files of a run."""
    lines = [f"{path.relative_to(run.path)} {file_digest(path)}" for path in paths]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def log_report(client: Any, run_id: str, report: Path) -> None:
    """Log the report under the name `REPORT`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / REPORT
        shutil.copy(report, path)
        client.log_artifact(run_id, str(path))
