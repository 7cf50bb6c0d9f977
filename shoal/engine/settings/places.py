"""The folders of a project: home, the store of data, runs, and the mirror of raw data sets."""

from __future__ import annotations

import os
from pathlib import Path

from shoal.core.errors import DataError

HOME_VARIABLE = "SHOAL_HOME"
PAGE_VARIABLE = "SHOAL_MLFLOW_PAGE"
"""Address of the MLflow page that shows the store of runs; `shoal serve` sets it for its runs."""


def home() -> Path:
    """Return the folder of a project: SHOAL_HOME, or the current folder."""
    value = os.environ.get(HOME_VARIABLE)
    if not value:
        return Path.cwd()
    return Path(value).expanduser().resolve()


def store() -> Path:
    """Return the store of data: raw, prepared, partitions."""
    return home() / "data" / "store"


def runs() -> Path:
    """Return the folder of all runs."""
    return home() / "runs"


def baselines() -> Path:
    """Return the folder of runs that are null baselines of others, at sites."""
    return home() / "results" / "baselines"


def site() -> Path:
    """Return the folder of a site's own rules, and of the log of what left it."""
    return home() / "site"


def searches() -> Path:
    """Return the folder of all searches over settings."""
    return home() / "results" / "searches"


def mlflow_store() -> Path:
    """Return the folder of the embedded MLflow store."""
    return home() / "mlflow"


def prefect_home() -> Path:
    """Return Prefect's own folder, with the database of its server."""
    return home() / ".prefect"


def login() -> Path:
    """Return the file with the login of the pages that `shoal serve` starts."""
    return prefect_home() / "login"


def mirror() -> Path | None:
    """Return the folder of raw data sets that SHOAL_DATA_MIRROR names; None if it is not set.

    Raises:
        DataError: what it names is not a folder.
    """
    from shoal.data.sets.sources import (
        MIRROR_VARIABLE,  # here: it imports numpy, which most commands need later or never
    )

    value = os.environ.get(MIRROR_VARIABLE)
    if not value:
        return None
    folder = Path(value).expanduser().resolve()
    if not folder.is_dir():
        raise DataError(f"{MIRROR_VARIABLE} is {value!r}, which is not a folder: correct it, or unset it to download")
    return folder
