"""A run's files in MLflow: settings, lineage, tables, report, and figures, also as images with the round as their step.

What is logged already is known by a digest of each group of files, in a tag that is written after them: repeating costs
reading the files, and no upload.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.codec import file_digest
from shoal.engine.store.run_folder import RunFolder
from shoal.review.mlflow_log.rounds import allowed_name, round_stamp
from shoal.review.mlflow_log.uploads import time_to_send
from shoal.review.results.clusters import CENTRES, FACTS, TABLE

FILES_LOGGED = "shoal.files_logged"
"""Tag: digests of what MLflow has, by group."""
SINGLE = ("events.jsonl", "clients.parquet", TABLE, FACTS, CENTRES, "report.html")
"""Files that tell of single clients."""
SMALL = 256
"""Pixels of the longer side of the small copy of an image that MLflow's charts show."""
CLIENTS_TABLE = "tables/clients.json"


def log_files(client: Any, found: Any, run: RunFolder, settings: Settings) -> dict[str, str]:
    """Log the files of a run that MLflow does not have as they are now.

    With `tracking.clients` false none of what tells of single clients: rounds, settings and the model alone.

    Args:
        client: an MlflowClient.
        found: the MLflow run.
        run: the run's folder.
        settings: of the run.

    Returns:
        Tags to set then.
    """
    run_id, told = found.info.run_id, settings.tracking.clients
    names = ("settings.yaml", "lineage.json", "rounds.parquet", *(SINGLE if told else ()))
    groups: dict[str, tuple[list[Path], Callable[[], None]]] = {}
    for path in (run.path / name for name in names):
        if path.exists():
            groups[path.name] = [path], lambda path=path: client.log_artifact(run_id, str(path))  # type: ignore[misc]
    figures = sorted(path for path in run.figures.rglob("*") if path.is_file()) if told else []
    if any(path.suffix == ".png" for path in figures):
        groups["figures"] = figures, lambda: log_figures(client, run_id, run)
    if told and (run.path / "clients.parquet").exists():
        groups[CLIENTS_TABLE] = [run.path / "clients.parquet"], lambda: log_clients_table(client, run_id, run)
    before = logged_before(found.data.tags)
    now = {name: digest_of(run, paths) for name, (paths, _) in groups.items()}
    for name, (_, log) in groups.items():
        if before.get(name) != now[name]:
            with time_to_send(*groups[name][0]):
                log()
    if before == now:
        return {}
    shown = {"mlflow.loggedArtifacts": json.dumps([{"path": CLIENTS_TABLE, "type": "table"}])}
    images = {"mlflow.loggedImages": "True"} if "figures" in now else {}
    return {FILES_LOGGED: json.dumps(now), **images, **(shown if CLIENTS_TABLE in now else {})}


def logged_before(tags: Mapping[str, str]) -> dict[str, str]:
    """The digests by group that an MLflow run's tag says."""
    try:
        found = json.loads(tags.get(FILES_LOGGED, "{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def digest_of(run: RunFolder, paths: list[Path]) -> str:
    """Short hex digest of names and bytes of some files of a run."""
    lines = [f"{path.relative_to(run.path)} {file_digest(path)}" for path in paths]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def log_clients_table(client: Any, run_id: str, run: RunFolder) -> None:
    """The table of clients as MLflow's page shows tables."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / Path(CLIENTS_TABLE).name
        path.write_text(run.table("clients").to_json(orient="split", index=False))
        client.log_artifact(run_id, str(path), str(Path(CLIENTS_TABLE).parent))


def log_figures(client: Any, run_id: str, run: RunFolder) -> None:
    """The figures as files and, without contact sheets of clusters, as images at the run's last round."""
    client.log_artifacts(run_id, str(run.figures), "figures")
    round = run.status().round
    stamp = round_stamp(run, round)
    drawn = {f"figures/{path.stem}": path for path in sorted(run.figures.glob("*.png"))}
    with tempfile.TemporaryDirectory() as scratch:
        for key, path in drawn.items():
            copy_image(path, Path(scratch), key, round, stamp)
        client.log_artifacts(run_id, scratch, "images")


def copy_image(path: Path, folder: Path, key: str, step: int, stamp: int) -> None:
    """An image and its small copy, called as `MlflowClient.log_image` calls them.

    That one puts a random word into the name, so that each sync would add the image again; here it has none.

    Args:
        path: a PNG file.
        folder: where to put both.
        key: name of the image in MLflow's charts; what stands before its last `/` is the section.
        step: the round.
        stamp: in milliseconds since the epoch.
    """
    key = "/".join(allowed_name(part).replace(":", "_") for part in key.split("/"))
    word = uuid.uuid5(uuid.NAMESPACE_URL, f"{key} {step}")
    name = f"{key.replace('/', '~')}+step+{step}+timestamp+{stamp}+{word}"
    (folder / f"{name}.png").write_bytes(path.read_bytes())
    with Image.open(path) as image:
        small = image.convert("RGB")
        small.thumbnail((SMALL, SMALL), reducing_gap=2.0)
        small.save(folder / f"{name}+compressed.webp")
