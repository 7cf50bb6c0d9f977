"""A run's files in MLflow: settings, lineage, tables, report, and figures, also as images with the round as their step.

A tag that is written after the files holds a digest of each logged group of files: logging again reads the files, but
uploads nothing.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.codec import file_digest
from shoal.engine.store.run_folder import RunFolder
from shoal.review.mlflow_log.rounds import allowed_name, round_stamp
from shoal.review.mlflow_log.uploads import longer_timeout
from shoal.review.results import views
from shoal.review.results.clusters import CENTRES, FACTS, TABLE

FILES_LOGGED = "mlflow.shoal.files_logged"
"""Tag: digests of the files that MLflow has, by group."""
CLIENT_FILES = ("events.jsonl", "clients.parquet", TABLE, FACTS, CENTRES)
"""Files with data of single clients."""
REPORT = "Report.html"
"""The report among the artifacts: MLflow lists capital letters first, so that it stands above all other files."""
IMAGES = "views"
"""The section of images among MLflow's charts, which stands below those of numbers."""
THUMBNAIL_SIDE = 256
"""Pixels of the longer side of the small copy of an image, which MLflow's charts show."""
CLIENTS_TABLE = "tables/clients.json"


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
        groups["figures"] = figures, lambda: log_figures(client, run_id, run)
    clients = run.path / "clients.parquet"
    if clients.exists():
        groups[CLIENTS_TABLE] = [clients], lambda: log_clients_table(client, run_id, run)
    return groups


def tags_of(digests: Mapping[str, str]) -> dict[str, str]:
    """Return the tags of an MLflow run for logged groups of files, by their digests."""
    tags = {FILES_LOGGED: json.dumps(digests)}
    if "figures" in digests:
        tags["mlflow.loggedImages"] = "True"
    if CLIENTS_TABLE in digests:
        tags["mlflow.loggedArtifacts"] = json.dumps([{"path": CLIENTS_TABLE, "type": "table"}])
    return tags


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


def log_clients_table(client: Any, run_id: str, run: RunFolder) -> None:
    """Log the table of clients in the form in which MLflow's page shows tables."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / Path(CLIENTS_TABLE).name
        path.write_text(run.table("clients").to_json(orient="split", index=False))
        client.log_artifact(run_id, str(path), str(Path(CLIENTS_TABLE).parent))


def log_figures(client: Any, run_id: str, run: RunFolder) -> None:
    """Log the figures as files and, without contact sheets of clusters, as images at the run's last round."""
    client.log_artifacts(run_id, str(run.figures), "figures")
    round = run.status().round
    stamp = round_stamp(run, round)
    with tempfile.TemporaryDirectory() as scratch:
        for path in sorted(run.figures.glob("*.png")):
            copy_image(path, Path(scratch), f"{IMAGES}/{path.stem}", round, stamp)
        client.log_artifacts(run_id, scratch, "images")


def copy_image(path: Path, folder: Path, key: str, step: int, stamp: int) -> None:
    """Copy an image, and a small version of it, under the names that `MlflowClient.log_image` gives.

    `log_image` puts a random word into each name, and each sync would add the image again; these names are fixed.

    Args:
        path: a PNG file.
        folder: takes both images.
        key: name of the image in MLflow's charts; the part before its last `/` is the section.
        step: the round.
        stamp: time in milliseconds since the epoch.
    """
    key = "/".join(allowed_name(part).replace(":", "_") for part in key.split("/"))
    word = uuid.uuid5(uuid.NAMESPACE_URL, f"{key} {step}")
    name = f"{key.replace('/', '~')}+step+{step}+timestamp+{stamp}+{word}"
    (folder / f"{name}.png").write_bytes(path.read_bytes())
    with Image.open(path) as image:
        small = image.convert("RGB")
        small.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE), reducing_gap=2.0)
        small.save(folder / f"{name}+compressed.webp")
