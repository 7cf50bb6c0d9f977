"""The checks of `shoal doctor`: methods, devices, data and servers."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from shoal.data.sets.prepare import damaged_sets, prepared_sets
from shoal.engine.settings import places
from shoal.engine.settings.hardware import describe
from shoal.engine.settings.run_settings import make_settings
from shoal.engine.store.code_version import project_state, shoal_version
from shoal.methods.registry import ADDED
from shoal.review.mlflow_log.embedded_store import store_uri
from shoal.review.mlflow_log.tracking import open_client, reason_of, shown_uri
from shoal.tasks.prefect.environment import server_answers

MLFLOW_REPAIR = (
    "a server: start it, set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or unset MLFLOW_TRACKING_URI; the "
    "store of this home: move its folder away, and `shoal model log` makes it again"
)


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
        name: what was checked.
        ok: whether it is in order.
        detail: what was found.
        repair: how to repair it; empty where it is in order.
        optional: whether Shoal works without it.
    """

    name: str
    ok: bool
    detail: str
    repair: str = ""
    optional: bool = False


def checks() -> list[Check]:
    """Return the results of all checks."""
    return [*packages(), *machine(), *stores(), *servers()]


def packages() -> Iterator[Check]:
    """Check Shoal and the methods of other packages."""
    shoal = shoal_version()
    yield Check("shoal", True, f"{shoal.in_words()}; sha256 {shoal.sha256}; Python {platform.python_version()}")
    for name, (package, number) in ADDED.packages.items():
        yield Check(f"method {name}", True, f"{package} {number}")
    for name, reason in ADDED.broken.items():
        yield Check(f"method {name}", False, reason, "repair or remove its package; everything else works")


def machine() -> Iterator[Check]:
    """Check devices, cores, and space on the disk."""
    hardware = describe()
    gpus = ", ".join(hardware.gpus) or "none: client training runs on the CPU"
    yield Check("devices", True, f"{hardware.cores} cores; GPUs: {gpus}; torch {torch.__version__}")
    home = places.home()
    there = next(folder for folder in (home, *home.parents) if folder.exists())  # a run makes the home
    free = shutil.disk_usage(there).free / 1e9
    yield Check("disk", free > 1, f"{free:.1f} GB free in {home}", "free some space, or set SHOAL_HOME")
    writable = os.access(there, os.W_OK)
    yield Check("home", writable, str(home), "set SHOAL_HOME to a folder that you may write to")


def stores() -> Iterator[Check]:
    """Check data, git and DVC: every byte of the stored sets is read."""
    store = places.store()
    yield Check("data sets", True, f"prepared: {', '.join(m.name for m in prepared_sets(store)) or 'none yet'}")
    for name, wrong in damaged_sets(store, verify=True):
        yield Check(f"data set {name}", False, wrong, "see the message")
    git = project_state(places.home())
    state = git.in_words() or "no commit of this project is known to git"
    repair = "`git init` and a first commit, for lineage to name it; where there is one, `git log` says what is wrong"
    yield Check("git", git.commit is not None, state, repair, optional=True)
    dvc = (places.home() / ".dvc").is_dir()
    yield Check("dvc", dvc, "repository found" if dvc else "no .dvc here", "dvc init", optional=True)


def mlflow_store() -> Check:
    """Ask the MLflow that runs are logged to, with the password of the environment."""
    settings = make_settings({})
    shown = shown_uri(settings)
    if shown == store_uri(places.mlflow_store()) and not places.mlflow_store().exists():
        return Check("mlflow store", True, f"{shown}: the first run makes it")
    try:
        open_client(settings).search_experiments(max_results=1)
    except Exception as error:  # whatever MLflow raises
        return Check("mlflow store", False, f"{shown}: {reason_of(error, settings)}", MLFLOW_REPAIR)
    return Check("mlflow store", True, shown)


def servers() -> Iterator[Check]:
    """Check MLflow and Prefect."""
    yield mlflow_store()
    url = os.environ.get("PREFECT_API_URL", "")
    yield Check(
        "prefect server",
        server_answers(),
        url or "PREFECT_API_URL is not set",
        "start shoal serve, then export PREFECT_API_URL=http://127.0.0.1:4200/api",
        optional=True,
    )
