"""The origin of a run, for its report: settings that differ from the defaults, links to origins, how to repeat it."""

from __future__ import annotations

import contextlib
import shlex
from dataclasses import dataclass
from typing import Any

from shoal.core.errors import DataError, ShoalError
from shoal.data.prepared import read_manifest
from shoal.engine.settings.addresses import masked
from shoal.engine.settings.defaults import DECIDE_DEFAULTS, changed_settings, default_settings
from shoal.engine.settings.run_settings import Settings, flatten, make_settings
from shoal.engine.store.embedded import embedded_from
from shoal.engine.store.lineage import DataVersion, GitState, PartitionVersion
from shoal.engine.store.run_folder import LINEAGE, SETTINGS, RunFolder
from shoal.review.mlflow_log.page import mlflow_page

MAX_CHARACTERS = 120
"""Characters of a value that are shown."""
FILES = (SETTINGS, LINEAGE, "rounds.parquet", "clients.parquet", "links.parquet", "clusters.parquet", "events.jsonl")
"""The files of a run to which its report links, where they exist."""


@dataclass(frozen=True)
class Origin:
    """One line of a run's lineage.

    Attributes:
        what: the kind of origin.
        name: its name.
        link: its address for a browser; may be empty.
        digest: tells it apart from others; may be empty.
    """

    what: str
    name: str
    link: str = ""
    digest: str = ""


def chosen_settings(settings: Settings) -> list[tuple[str, str, str]]:
    """Return the settings that differ from the defaults of the method, the data and the partition scheme.

    Args:
        settings: of the run.

    Returns:
        For each setting its key, its value, and the default. Method, data and partition scheme, on which the other
        defaults depend, come first, with the default of all runs.
    """
    values = flatten(settings)
    fallback = flatten(make_settings({}))
    default = default_settings(settings)
    rows = [(key, shown(values[key]), shown(fallback.get(key))) for key in DECIDE_DEFAULTS]
    return rows + [(key, shown(value), shown(default.get(key))) for key, value in changed_settings(settings).items()]


def shown(value: Any) -> str:
    """Return a setting's value for a table, without passwords and not too long."""
    if value is None:
        return "none"
    text = masked(str(value))
    if len(text) > MAX_CHARACTERS:
        text = f"{text[: MAX_CHARACTERS - 1]}…"
    return text


def origins(run: RunFolder) -> list[Origin]:
    """Return the origins of the run's numbers: MLflow run, code, data, partition, machine.

    Args:
        run: the run's folder.
    """
    lineage = run.lineage()
    rows = []
    if run_id := lineage.mlflow_run:
        page = None
        with contextlib.suppress(ShoalError):  # the store's address names a variable that is not set here
            page = mlflow_page(run)
        if page is None:
            rows.append(Origin("MLflow run", f"{run_id}, on the page that shoal serve starts"))
        else:
            rows.append(Origin("MLflow run", run_id, masked(page)))
    if prefect := lineage.prefect:
        rows.append(Origin("Prefect flow run", prefect.flow_run, masked(prefect.page or "")))
    if commit := commit_words(lineage.git):
        rows.append(Origin("commit", commit, lineage.git.page or ""))
    rows.append(data_origin("data", run, lineage.data, lineage.data.name))
    rows += embedded_origins(run)
    rows.append(data_origin("partition", run, lineage.partition, run.folder_of("partition").name))
    if encoder := lineage.encoder:
        rows.append(Origin("encoder", encoder.in_words(), "", f"sha256 {encoder.sha256}"))
    rows.append(Origin("settings", SETTINGS, "", f"sha256 {lineage.settings_sha256}"))
    machine = ", ".join(lineage.hardware.gpus) or f"{lineage.hardware.cores} cores"
    rows.append(Origin("machine", f"{lineage.resolved.device}, {lineage.resolved.precision}, {machine}"))
    versions = ", ".join(f"{name} {version}" for name, version in lineage.versions.items())
    rows.append(Origin("versions", versions))
    return rows


def embedded_origins(run: RunFolder) -> list[Origin]:
    """Return the lines of the images and the encoder that a set of vectors was made of; none for any other set."""
    try:
        origin = embedded_from(read_manifest(run.folder_of("data")))
    except DataError:  # the data are not here
        return []
    if origin is None:
        return []
    encoder = origin.encoder
    return [
        Origin("images", origin.images, "", f"sha256 {origin.digest}"),
        Origin("encoder", f"{encoder.in_words()}; on {origin.device}", "", f"sha256 {encoder.sha256}"),
    ]


def commit_words(code: GitState) -> str:
    """Return the commit of a lineage's code, with a note on changes; empty where it names none."""
    commit = code.commit or ""
    if commit and code.dirty:
        commit += " with changes"
    return commit


def data_origin(what: str, run: RunFolder, version: DataVersion | PartitionVersion, name: str) -> Origin:
    """Return the line of the data set (`data`) or of the partition (`partition`), with a link where it is here."""
    folder = run.folder_of(what)
    link = ""
    if folder.is_absolute() and folder.is_dir():
        link = folder.as_uri()
    return Origin(what, name, link, f"sha256 {version.digest}, DVC {version.dvc}")


def run_files(run: RunFolder) -> list[str]:
    """Return the files of the run that lie beside its report."""
    return [name for name in FILES if (run.path / name).exists()]


def repeat_command(run: RunFolder) -> str:
    """Return the shell command that computes the run again from its settings."""
    return f"shoal run {shlex.quote(str(run.path / SETTINGS))}"
