"""MLflow as a view of the run folder: one function brings it up to date, and can be repeated at any time.

A sync only logs what is new: tags of the MLflow run say which rounds and files it has
(`shoal.review.mlflow_log.rounds`, `shoal.review.mlflow_log.files`), and its models say whether they are complete
(`shoal.review.mlflow_log.models`), so nothing is logged twice. Metrics have the time at which their round ended. A
server out of reach never stops training; the next sync catches up.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from shoal.core.errors import ShoalError
from shoal.engine.settings import places
from shoal.engine.settings.addresses import fill_variables, masked
from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.run_events import Event
from shoal.engine.store.run_folder import RunFolder
from shoal.review.mlflow_log.embedded_store import ready_store, store_uri
from shoal.review.mlflow_log.files import log_files
from shoal.review.mlflow_log.models import log_models
from shoal.review.mlflow_log.note import note_tags
from shoal.review.mlflow_log.rounds import log_quality, log_rounds
from shoal.review.mlflow_log.run import mlflow_run
from shoal.review.mlflow_log.trouble import check_installed, why_not_logged
from shoal.review.results.views import REPORT

SYSTEM_METRICS_VARIABLE = "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING"
"""MLflow's own variable: with true a run logs system metrics of this machine."""

# A server out of reach must be noticed in seconds; MLflow's own defaults wait for minutes.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
# Progress and warnings are Shoal's to show; standard output may be for JSON alone.
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")
# MLflow prints the address of each run that ends, with the password in it.
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
logging.getLogger("alembic").setLevel(logging.WARNING)

_DATABASE = re.compile(r"(sqlite|postgresql|mysql|mssql)(\+\w+)?://")
PAUSE_FACTOR = 10.0
"""The pause after a sync, as a multiple of its duration."""


def tracking_uri(settings: Settings) -> str:
    """Return where runs are logged: the setting, MLFLOW_TRACKING_URI, or the home's embedded SQLite store.

    It may hold a password: use `shown_uri` for texts that are written or shown.

    Raises:
        AddressError: the setting names an environment variable that is not set.
    """
    if settings.tracking.uri:
        return fill_variables(settings.tracking.uri, "tracking.uri")
    return os.environ.get("MLFLOW_TRACKING_URI") or store_uri(places.mlflow_store())


def shown_uri(settings: Settings) -> str:
    """Return the address of `tracking_uri` without a password or token."""
    return masked(settings.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI") or store_uri(places.mlflow_store()))


def open_client(settings: Settings) -> Any:
    """Return an MlflowClient for the address of `tracking_uri`; create or repair the embedded store first.

    Raises:
        TrackingError: MLflow is not installed. TrackingStoreError: the embedded store cannot be created.
    """
    check_installed()
    from mlflow import MlflowClient

    uri = tracking_uri(settings)
    if uri == store_uri(places.mlflow_store()):
        ready_store(places.mlflow_store())
    return MlflowClient(tracking_uri=uri)


def artifact_folder(uri: str) -> Path | None:
    """Return where the files of a new experiment go: beside the embedded store, for databases without a server.

    MLflow's own default is a folder below the working directory, which differs from run to run.

    Args:
        uri: from `tracking_uri`.

    Returns:
        None where a server chooses the folder.

    >>> artifact_folder("postgresql+psycopg2://me@host/mlflow").name, artifact_folder("http://host:5000")
    ('artifacts', None)
    """
    if not _DATABASE.match(uri):
        return None
    return places.mlflow_store() / "artifacts"


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
        self._monitor: Any = None
        self._reported = False
        self._next = 0.0
        self.live = False
        """Whether the tracker was started, and syncs after rounds."""

    def start(self) -> None:
        """Begin to create the MLflow run, or resume the one that the run has, and start system metrics.

        This happens on the thread: MLflow takes seconds to import, and the first round need not wait.
        """
        self.live = True
        self._pending = self._thread.submit(self._begin)

    def _begin(self) -> None:
        self._safely("RUNNING", check_store=True)
        run_id = self.run.status().tracking.mlflow_run
        wanted = os.environ.get(SYSTEM_METRICS_VARIABLE, "false").lower() in ("true", "1")
        if wanted and run_id and not self._reported:
            # System metrics are optional: an error must not stop the run.
            with contextlib.suppress(Exception):
                from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

                uri = tracking_uri(self.settings)
                self._monitor = SystemMetricsMonitor(run_id, resume_logging=True, tracking_uri=uri)
                self._monitor.start()

    def observe(self, event: Event) -> None:
        """Sync after a round, unless a sync is under way, and not so often that it slows short rounds."""
        idle = self._pending is None or self._pending.done()
        if event.kind == "round_finished" and idle and time.monotonic() >= self._next:
            self._pending = self._thread.submit(self._safely, "RUNNING")

    def close(self) -> bool:
        """Let a sync that is under way end, and begin no more; closing twice changes nothing.

        Returns:
            Whether the last sync failed, and the run's events say so.
        """
        self._thread.shutdown()
        monitor = self._monitor
        self._monitor = None
        if monitor is not None:
            with contextlib.suppress(Exception):
                monitor.finish()
        return self._reported

    def stop(self, status: str) -> None:
        """Sync for the last time a run that ended before its last round; `status` is FAILED or KILLED."""
        self.close()
        self._safely(status)

    def _safely(self, status: str, *, check_store: bool = False) -> None:
        began = time.monotonic()
        try:
            sync(self.run, self.settings, status, check_store=check_store)
            self._reported = False
            self._next = time.monotonic() + PAUSE_FACTOR * (time.monotonic() - began)
        except Exception as error:  # whatever MLflow raises, training continues
            if not self._reported:
                self._reported = True
                report_trouble(self.run, error)


def report_trouble(run: RunFolder, error: Exception) -> None:
    """Record in the events of a run why MLflow does not have it, and what to do."""
    settings = run.settings()
    kind, why = why_not_logged(error, shown_uri(settings), settings)
    with contextlib.suppress(ShoalError):  # a full disk takes no event
        run.event(
            kind, message=f"{why}; the run is not affected: correct that, then `shoal model log {run.name}` logs it"
        )


def sync(run: RunFolder, settings: Settings, status: str = "FINISHED", *, check_store: bool = True) -> str:
    """Bring MLflow up to date with a run folder; repeating it changes nothing.

    Args:
        run: the run's folder.
        settings: of the run.
        status: of the MLflow run; FINISHED also logs the final model.
        check_store: whether to check the embedded store first, and to create or replace it.

    Returns:
        The MLflow run's id; the run's lineage keeps it, too.

    Raises:
        Exception: of MLflow, which is out of reach.
    """
    check_installed()
    from mlflow import MlflowClient
    from mlflow.entities import RunTag

    uri = tracking_uri(settings)
    store = places.mlflow_store()
    if check_store and uri == store_uri(store) and (changed := ready_store(store)):
        run.event("mlflow_store_changed", message=changed)
    client = MlflowClient(tracking_uri=uri)
    found = mlflow_run(client, run, settings, shown_uri(settings), artifact_folder(uri))
    run_id = str(found.info.run_id)
    tags = found.data.tags
    log_rounds(client, run_id, tags, run, settings)
    log_quality(client, run_id, tags, run)
    if status != "RUNNING":
        log_models(client, found, run, settings, final=status == "FINISHED")
        report = settings.tracking.clients and (run.path / REPORT).exists()
        new = log_files(client, found, tags, run, settings) | note_tags(run, found, report=report)
        client.log_batch(run_id, tags=[RunTag(key, value) for key, value in new.items()])
    if found.info.status != status:
        if status == "RUNNING":
            client.update_run(run_id, status=status)
        else:
            client.set_terminated(run_id, status, int((run.status().updated or 0) * 1000) or None)
    return run_id
