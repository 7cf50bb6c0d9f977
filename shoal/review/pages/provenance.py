"""The origin of a run, for its report: settings that differ from the defaults, files, how to repeat it."""

from __future__ import annotations

import contextlib
import shlex
from typing import Any

from shoal.core.errors import ShoalError
from shoal.engine.settings.addresses import masked
from shoal.engine.settings.defaults import DECIDE_DEFAULTS, changed_settings, default_settings
from shoal.engine.settings.run_settings import Settings, flatten, make_settings
from shoal.engine.store.run_folder import LINEAGE, SETTINGS, RunFolder
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


def shown_page(run: RunFolder) -> str:
    """Return the address of the run on MLflow's page, without secrets; empty where none is known."""
    with contextlib.suppress(ShoalError):  # the store's address names a variable that is not set here
        return masked(mlflow_page(run) or "")
    return ""


def run_files(run: RunFolder) -> list[str]:
    """Return the files of the run that lie beside its report."""
    return [name for name in FILES if (run.path / name).exists()]


def repeat_command(run: RunFolder) -> str:
    """Return the shell command that computes the run again from its settings."""
    return f"shoal run {shlex.quote(str(run.path / SETTINGS))}"
