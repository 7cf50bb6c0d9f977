"""The origin of a run, for its report: settings that differ from the defaults, lineage with links, how to repeat it."""

from __future__ import annotations

import contextlib
import shlex
from typing import Any

from shoal.core.errors import ShoalError
from shoal.engine.settings.addresses import masked
from shoal.engine.settings.defaults import DECIDE_DEFAULTS, changed_settings, default_settings
from shoal.engine.settings.run_settings import Settings, flatten, make_settings
from shoal.engine.store.run_folder import LINEAGE, SETTINGS, RunFolder
from shoal.review.mlflow_log.origins import LineageRow, sources_of
from shoal.review.mlflow_log.run_names import shorten
from shoal.review.mlflow_log.tracking import mlflow_page

MAX_CHARACTERS = 120
"""Characters of a value that are shown."""
FILES = (SETTINGS, LINEAGE, "rounds.parquet", "clients.parquet", "links.parquet", "clusters.parquet", "events.jsonl")
"""The files of a run to which its report links, where they exist."""


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
    return [
        *tracking_rows(run),
        *sources_of(run),
        LineageRow("settings", SETTINGS, "", f"sha256 {lineage.settings_sha256}"),
        LineageRow("machine", f"{lineage.resolved.device}, {lineage.resolved.precision}, {machine}"),
        LineageRow("versions", versions),
    ]


def tracking_rows(run: RunFolder) -> list[LineageRow]:
    """Return the run's pages in MLflow and Prefect, where it has some."""
    tracking = run.status().tracking
    rows = []
    if run_id := tracking.mlflow_run:
        row = LineageRow("MLflow run", f"{run_id}, on the page that shoal serve starts")
        with contextlib.suppress(ShoalError):  # the store's address names a variable that is not set here
            if page := mlflow_page(run):
                row = LineageRow("MLflow run", run_id, masked(page))
        rows.append(row)
    if prefect := tracking.prefect:
        rows.append(LineageRow("Prefect flow run", prefect.flow_run, masked(prefect.page or "")))
    return rows


def run_files(run: RunFolder) -> list[str]:
    """Return the files of the run that lie beside its report."""
    return [name for name in FILES if (run.path / name).exists()]


def repeat_command(run: RunFolder) -> str:
    """Return the shell command that computes the run again from its settings."""
    return f"shoal run {shlex.quote(str(run.path / SETTINGS))}"
