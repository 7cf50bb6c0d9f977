"""MLflow as a view of the run folder: one function brings it up to date, and can be repeated at any time.

A tag of the MLflow run says which rounds it has (`shoal.review.mlflow_log.rounds`), and its models say whether they are
complete (`shoal.review.mlflow_log.models`), so no number or model is logged twice. Metrics have the time at which their
round ended. A server out of reach never stops training; the next sync catches up.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from shoal.core.errors import ShoalError, short_text
from shoal.engine.settings import places
from shoal.engine.settings.addresses import fill_variables, masked, without_user
from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.checkpoint import load_manifest
from shoal.engine.store.codec import StoreError
from shoal.engine.store.kept_state import read_state
from shoal.engine.store.run_events import Event
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.tables import TABLES
from shoal.review.mlflow_log.descriptions import run_note
from shoal.review.mlflow_log.embedded_store import ready_store, recorded_uri, store_uri
from shoal.review.mlflow_log.experiments import NOTE
from shoal.review.mlflow_log.files import log_files
from shoal.review.mlflow_log.model_registry import register
from shoal.review.mlflow_log.models import log_models
from shoal.review.mlflow_log.rounds import log_quality, log_rounds, lost_rounds
from shoal.review.mlflow_log.run import mlflow_run
from shoal.review.results.clusters import CENTRES, FEATURES, read_cluster_tensors, read_clusters
from shoal.review.results.views import REPORT

# Seconds for one answer: a server with an object store answers when it has stored a whole model.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "120")
# A server that refuses connections must be noticed in seconds; MLflow would try for minutes.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
# Progress and warnings are Shoal's to show; standard output may be for JSON alone.
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")
# MLflow prints the address of each run that ends, with the password in it.
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
logging.getLogger("alembic").setLevel(logging.WARNING)

PAUSE_FACTOR = 10.0
"""The pause after a sync, as a multiple of its duration."""


def _address(settings: Settings) -> str:
    """Return where runs are logged: the setting, MLFLOW_TRACKING_URI, or the home's embedded SQLite store."""
    return settings.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI") or store_uri(places.mlflow_store())


def tracking_uri(settings: Settings) -> str:
    """Return where runs are logged, with environment variables filled in.

    It may hold a password: use `shown_uri` for texts that are written or shown.

    Raises:
        AddressError: the setting names an environment variable that is not set.
    """
    return fill_variables(_address(settings), "tracking.uri")


def shown_uri(settings: Settings) -> str:
    """Return the address of `tracking_uri` without a password or token."""
    return masked(_address(settings))


def open_client(settings: Settings) -> Any:
    """Return an MlflowClient for the address of `tracking_uri`; create or move the embedded store first.

    Raises:
        TrackingError: MLflow is not installed. TrackingStoreError: the embedded store cannot be created or read.
    """
    check_installed()
    from mlflow import MlflowClient

    uri = tracking_uri(settings)
    if uri == store_uri(places.mlflow_store()):
        ready_store(places.mlflow_store())
    return MlflowClient(tracking_uri=uri)


class Tracker:
    """Keeps MLflow up to date with a run that is under way, on a thread of its own.

    Args:
        run: the run's folder.
        settings: of the run.
    """

    def __init__(self, run: RunFolder, settings: Settings) -> None:
        self.run = run
        self.settings = settings
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mlflow")
        self._pending: Future[None] | None = None
        self._next = 0.0

    def start(self) -> None:
        """Begin to create the MLflow run, or resume the one that the run has.

        This happens on the thread: MLflow takes seconds to import, and the first round need not wait.
        """
        self._pending = self._thread.submit(self._sync, "RUNNING")

    def observe(self, event: Event) -> None:
        """Sync after a round, unless a sync is under way, and not so often that it slows short rounds."""
        idle = self._pending is None or self._pending.done()
        if event.kind == "round_finished" and idle and time.monotonic() >= self._next:
            self._pending = self._thread.submit(self._sync, "RUNNING")

    def close(self) -> None:
        """Let a sync that is under way end, and begin no more; closing twice changes nothing."""
        self._thread.shutdown()

    def stop(self, status: str) -> None:
        """Sync for the last time a run that ended before its last round; `status` is FAILED or KILLED."""
        self.close()
        self._sync(status)

    def _sync(self, status: str) -> None:
        began = time.monotonic()
        try:
            sync(self.run, self.settings, status)
        except Exception as error:  # whatever MLflow raises, training continues
            report_trouble(self.run, error)
        now = time.monotonic()
        self._next = now + PAUSE_FACTOR * (now - began)


def report_trouble(run: RunFolder, error: Exception) -> None:
    """Record in the events of a run, once a start, why MLflow does not have it, and what to do."""
    settings = run.settings()
    with contextlib.suppress(ShoalError):  # a full disk takes no event
        kinds = [event.kind for event in run.events()]
        begun = max((place for place, kind in enumerate(kinds) if kind in ("started", "resumed")), default=0)
        # MLflow is asked beside the run's start, and may have failed just before that is noted.
        if INCOMPLETE not in kinds[max(0, begun - 1) :]:
            run.event(
                INCOMPLETE,
                message=f"MLflow at {shown_uri(settings)} does not have all of the run ({reason_of(error, settings)}); "
                f"the run is not affected: correct that, then `shoal model log {run.name}` logs it",
            )


def sync(run: RunFolder, settings: Settings, status: str = "FINISHED") -> str:
    """Bring MLflow up to date with a run folder; repeating it changes nothing.

    Args:
        run: the run's folder.
        settings: of the run.
        status: of the MLflow run; FINISHED also logs the final model.

    Returns:
        The MLflow run's id; the run's status keeps it, too.

    Raises:
        Exception: of MLflow, which is out of reach.
    """
    client = open_client(settings)
    logged = mlflow_run(client, run, settings, shown_uri(settings))
    run_id = str(logged.info.run_id)
    log_rounds(client, logged, run, settings)
    if status != "RUNNING":
        log_quality(client, run_id, run)
        log_models(client, logged, run, settings, final=status == "FINISHED")
        log_files(client, run_id, run, settings)
        # A description that is there stays, also one that a user wrote.
        if status == "FINISHED" and not logged.data.tags.get(NOTE):
            has_report = settings.tracking.clients and (run.path / REPORT).exists()
            client.set_tag(run_id, NOTE, run_note(run, report=has_report and logged))
    if logged.info.status != status:
        if status == "RUNNING":
            client.update_run(run_id, status=status)
        else:
            client.set_terminated(run_id, status, int((run.status().updated or 0) * 1000) or None)
    return run_id


def mlflow_page(folder: RunFolder) -> str | None:
    """Return the address of a run on MLflow's page.

    Returns:
        None where the run is not in MLflow, or where no page of its store is known.
    """
    tracking = folder.status().tracking
    settings = folder.settings()
    run_id = tracking.mlflow_run
    if not run_id or tracking.mlflow_uri != recorded_uri(shown_uri(settings)):
        return None  # it is not logged, or it is logged elsewhere now
    store = tracking_uri(settings)
    # The page of a store of the run's own, without a server, is not known.
    page = os.environ.get(places.PAGE_VARIABLE) if settings.tracking.uri is None else None
    if store.startswith("http"):
        page = without_user(store)
    return f"{page.rstrip('/')}/#/runs/{run_id}" if page else None


def log_run(run: RunFolder) -> bool:
    """Bring MLflow up to date with a run whose rounds are done: tables, figures, report, checkpoints, final model.

    Returns:
        Whether MLflow has all of it now.
    """
    try:
        sync(run, run.settings())
    except Exception as error:  # whatever MLflow raises, the run is done
        report_trouble(run, error)
        return False
    return True


def register_model(run: RunFolder) -> str | None:
    """Register the model that a run has logged, and move the aliases of its name.

    Returns:
        Its version; None where the settings want none or MLflow has no model.
    """
    settings = run.settings()
    run_id = run.status().tracking.mlflow_run
    if run_id is None:
        return None
    try:
        return register(run, settings, open_client(settings), run_id)
    except Exception as error:
        report_trouble(run, error)
        return None


def check_whole(run: RunFolder) -> None:
    """Refuse a finished run with a damaged file; figures and the report, which are views, are not checked.

    Raises:
        StoreError, RunError: names the run, the file, and what to do.
    """
    run.settings()
    run.whole_events()
    for name in TABLES:
        run.table(name)
    lost = lost_rounds(run)
    for round in range(run.status().round + 1):
        if round in lost:
            continue
        try:
            load_manifest(run, round)
        except StoreError as error:
            raise StoreError(
                f"run {run.name}: {error}; `shoal run --resume {run.name}` writes the tables without round {round}"
            ) from error
    read_state(run)
    read_clusters(run)
    for name in (CENTRES, FEATURES):
        read_cluster_tensors(run, name)


INCOMPLETE = "mlflow_incomplete"
"""Event of a run: MLflow does not have all of it."""


class TrackingError(ShoalError):
    """MLflow cannot log a run, for a reason that the user can correct."""


def check_installed() -> None:
    """Refuse to continue without the package MLflow; a folder named `mlflow` on Python's path is no package.

    Raises:
        TrackingError: says how to install it.
    """
    spec = importlib.util.find_spec("mlflow")
    if spec is None or spec.origin is None:
        raise TrackingError(
            "the package mlflow is not installed here: `pip install mlflow`, or set tracking.mlflow to false"
        )


def reason_of(error: Exception, settings: Settings) -> str:
    """Return what an error says, without the secrets of an address, and of MLflow's errors at most 200 characters."""
    reason = masked(str(error) or type(error).__name__, settings.tracking.uri)
    if isinstance(error, ShoalError):
        return reason
    return short_text(Exception(reason))
