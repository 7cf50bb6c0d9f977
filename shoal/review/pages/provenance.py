"""The origin of a run, for its report: settings that differ from the defaults, lineage with links, how to repeat it."""

from __future__ import annotations

import contextlib
import shlex
from dataclasses import dataclass
from typing import Any

from shoal.core.errors import DataError, ShoalError
from shoal.data.sets.prepared import read_manifest
from shoal.engine.settings.addresses import masked
from shoal.engine.settings.defaults import DECIDE_DEFAULTS, changed_settings, default_settings
from shoal.engine.settings.run_settings import Settings, flatten, make_settings
from shoal.engine.store.embedded import embedded_from
from shoal.engine.store.lineage import DataVersion, PartitionVersion
from shoal.engine.store.run_folder import LINEAGE, SETTINGS, RunFolder
from shoal.review.mlflow_log.page import mlflow_page
from shoal.review.mlflow_log.run_names import shorten

MAX_CHARACTERS = 120
"""Characters of a value that are shown."""
FILES = (SETTINGS, LINEAGE, "rounds.parquet", "clients.parquet", "links.parquet", "clusters.parquet", "events.jsonl")
"""The files of a run to which its report links, where they exist."""


@dataclass(frozen=True)
class LineageRow:
    """One row of a run's lineage, as its report shows it.

    Attributes:
        what: what the row is about: data, code and so on.
        name: its name.
        link: its address for a browser; may be empty.
        digest: tells it apart from others; may be empty.
    """

    what: str
    name: str
    link: str = ""
    digest: str = ""


def changed_rows(settings: Settings) -> list[tuple[str, str, str]]:
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
    rows = [(key, value_in_table(values[key]), value_in_table(fallback.get(key))) for key in DECIDE_DEFAULTS]
    return rows + [
        (key, value_in_table(value), value_in_table(default.get(key)))
        for key, value in changed_settings(settings).items()
    ]


def value_in_table(value: Any) -> str:
    """Return a setting's value for a table, without passwords and not too long."""
    if value is None:
        return "none"
    return shorten(masked(str(value)), MAX_CHARACTERS)


def lineage_rows(run: RunFolder) -> list[LineageRow]:
    """Return what the run's numbers come from: MLflow run, code, data, partition, machine."""
    lineage = run.lineage()
    machine = ", ".join(lineage.hardware.gpus) or f"{lineage.hardware.cores} cores"
    versions = ", ".join(f"{name} {version}" for name, version in lineage.versions.items())
    rows = tracking_rows(run)
    if commit := lineage.git.in_words():
        rows.append(LineageRow("commit", commit))
    rows.append(LineageRow("Shoal", lineage.shoal.in_words(), "", f"sha256 {lineage.shoal.sha256}"))
    rows.append(data_row("data", run, lineage.data, lineage.data.name))
    rows += embedded_rows(run)
    rows.append(data_row("partition", run, lineage.partition, run.folder_of("partition").name))
    if encoder := lineage.encoder:
        rows.append(LineageRow("encoder", encoder.in_words(), "", f"sha256 {encoder.sha256}"))
    rows.append(LineageRow("settings", SETTINGS, "", f"sha256 {lineage.settings_sha256}"))
    rows.append(LineageRow("machine", f"{lineage.resolved.device}, {lineage.resolved.precision}, {machine}"))
    rows.append(LineageRow("versions", versions))
    return rows


def tracking_rows(run: RunFolder) -> list[LineageRow]:
    """Return the run's pages in MLflow and Prefect, where it has some."""
    tracking = run.status().tracking
    rows = []
    if run_id := tracking.mlflow_run:
        page = None
        with contextlib.suppress(ShoalError):  # the store's address names a variable that is not set here
            page = mlflow_page(run)
        if page is None:
            rows.append(LineageRow("MLflow run", f"{run_id}, on the page that shoal serve starts"))
        else:
            rows.append(LineageRow("MLflow run", run_id, masked(page)))
    if prefect := tracking.prefect:
        rows.append(LineageRow("Prefect flow run", prefect.flow_run, masked(prefect.page or "")))
    return rows


def embedded_rows(run: RunFolder) -> list[LineageRow]:
    """Return the rows of the images and the encoder that a set of vectors was made of; none for any other set."""
    try:
        origin = embedded_from(read_manifest(run.folder_of("data")))
    except DataError:  # the data are not here
        return []
    if origin is None:
        return []
    encoder = origin.encoder
    return [
        LineageRow("images", origin.images, "", f"sha256 {origin.digest}"),
        LineageRow("encoder", f"{encoder.in_words()}; on {origin.device}", "", f"sha256 {encoder.sha256}"),
    ]


def data_row(what: str, run: RunFolder, version: DataVersion | PartitionVersion, name: str) -> LineageRow:
    """Return the row of the data set (`data`) or of the partition (`partition`), with a link where it is here."""
    folder = run.folder_of(what)
    link = ""
    if folder.is_absolute() and folder.is_dir():
        link = folder.as_uri()
    return LineageRow(what, name, link, f"sha256 {version.digest}, DVC {version.dvc}")


def run_files(run: RunFolder) -> list[str]:
    """Return the files of the run that lie beside its report."""
    return [name for name in FILES if (run.path / name).exists()]


def repeat_command(run: RunFolder) -> str:
    """Return the shell command that computes the run again from its settings."""
    return f"shoal run {shlex.quote(str(run.path / SETTINGS))}"
