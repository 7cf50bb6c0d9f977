"""MLflow as a view of the run folder: one function brings it up to date, and can be repeated at any time.

Metrics carry the time at which their round ended, and MLflow is asked first which steps it has, so nothing is
logged twice. A server out of reach never stops training; the next sync catches up.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import tempfile
import time
import warnings
from collections.abc import Container, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd

from core.errors import ShoalError
from data.partition.table import load_partition
from engine import places
from engine.addresses import masked, resolved
from engine.checkpoint import has_server, rounds_done
from engine.codec import load_server, save_server
from engine.round_paths import SERVER, RoundPaths
from engine.run_folder import RunFolder
from engine.settings import Settings, flatten
from methods.base import Method
from methods.registry import METHODS
from review.clusters import CENTRES, FACTS, TABLE, client_names, cluster_facts
from review.embedded_store import ready_store, store_uri

# A server out of reach must be noticed in seconds; MLflow's own defaults wait for minutes.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
# Progress and warnings are Shoal's to show; standard output may be for JSON alone.
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")
logging.getLogger("alembic").setLevel(logging.WARNING)

BATCH = 900
"""Metrics in one call; MLflow takes 1,000."""
CLIENTS = 50
"""Of up to so many clients each has a loss curve of its own in MLflow."""
PAUSE = 10.0
"""After a sync none begins for so many times as long as it took."""
NOT_METRICS = ("round", "finished_at")


def tracking_uri(settings: Settings, store: Path) -> str:
    """Where runs are logged: the setting, MLFLOW_TRACKING_URI, or the embedded SQLite store in `store`.

    It may hold a password: for what is written or shown there is `shown_uri`.

    Raises:
        AddressError: the setting names an environment variable that is not set.
    """
    if settings.tracking.uri:
        return resolved(settings.tracking.uri, "tracking.uri")
    return os.environ.get("MLFLOW_TRACKING_URI") or store_uri(store)


def shown_uri(settings: Settings, store: Path) -> str:
    """As `tracking_uri`, without a password or token."""
    return masked(settings.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI") or store_uri(store))


class Tracker:
    """Keeps MLflow up to date with a run while it goes on, on a thread of its own.

    Args:
        run: the run's folder.
        settings: of the run.
        store: folder of the embedded store.
    """

    def __init__(self, run: RunFolder, settings: Settings, store: Path) -> None:
        self.run, self.settings, self.store = run, settings, store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mlflow")
        self._pending: Future[None] | None = None
        self._monitor: Any = None
        self._told = False
        self._next = 0.0

    def start(self) -> None:
        """Begin to create the MLflow run (or take up the one the run already has), and system metrics.

        On the thread: MLflow takes seconds to import, in which the first round can be under way.
        """
        self._pending = self._thread.submit(self._begin)

    def _begin(self) -> None:
        self._safely("RUNNING", look=True)
        run_id = self.run.lineage().get("mlflow_run")
        if self.settings.tracking.system and run_id and not self._told:
            # System metrics are a courtesy: whatever keeps them from starting must not stop the run.
            with contextlib.suppress(Exception):
                from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

                uri = tracking_uri(self.settings, self.store)
                self._monitor = SystemMetricsMonitor(run_id, resume_logging=True, tracking_uri=uri)
                self._monitor.start()

    def observe(self, event: dict[str, Any]) -> None:
        """After each round, sync; but not while a sync is going on, and not so often that it slows short rounds."""
        idle = self._pending is None or self._pending.done()
        if event["event"] == "round_finished" and idle and time.monotonic() >= self._next:
            self._pending = self._thread.submit(self._safely, "RUNNING")

    def close(self) -> bool:
        """Let a sync that is going on end, and begin no more; closing twice is the same.

        Returns:
            Whether the last sync failed, and the run's events say so.
        """
        self._thread.shutdown()
        monitor, self._monitor = self._monitor, None
        if monitor is not None:
            with contextlib.suppress(Exception):
                monitor.finish()
        return self._told

    def stop(self, status: str) -> None:
        """The last sync of a run that did not come to its end; `status` is FAILED or KILLED."""
        self.close()
        self._safely(status)

    def _safely(self, status: str, *, look: bool = False) -> None:
        began = time.monotonic()
        try:
            sync(self.run, self.settings, self.store, status, look=look)
            self._told = False
            self._next = time.monotonic() + PAUSE * (time.monotonic() - began)
        except Exception as error:  # whatever MLflow raises, training goes on
            if not self._told:
                self._told = True
                tell_unreachable(self.run, error)


def tell_unreachable(run: RunFolder, error: Exception) -> None:
    """Say in the events of a run that MLflow did not answer, and what to do."""
    settings = run.settings()
    uri = shown_uri(settings, places.mlflow_store())
    first = str(error).splitlines()[0] if str(error) else type(error).__name__
    first = masked(first, settings.tracking.uri)
    with contextlib.suppress(ShoalError):
        run.event(
            "mlflow_unreachable",
            message=f"MLflow at {uri} did not answer ({first[:200]}); the run goes on, and "
            f"`shoal run --resume {run.name}` brings MLflow up to date",
        )


def sync(run: RunFolder, settings: Settings, store: Path, status: str = "FINISHED", *, look: bool | None = None) -> str:
    """Bring MLflow up to date with a run folder; repeating it changes nothing.

    Args:
        run: the run's folder.
        settings: of the run.
        store: folder of the embedded store.
        status: of the MLflow run; at FINISHED also the final model is logged.
        look: whether the embedded store is looked at, and made or replaced, first; by default after the last round.

    Returns:
        The MLflow run's id, which is also kept in the run's lineage.

    Raises:
        Exception: whatever MLflow raises when it is out of reach.
    """
    from mlflow import MlflowClient

    uri, shown = tracking_uri(settings, store), shown_uri(settings, store)
    look = status != "RUNNING" if look is None else look
    if look and uri == store_uri(store) and (moved := ready_store(store)):
        run.event("mlflow_store_replaced", message=f"{moved}; `shoal run --resume RUN` logs an earlier run again")
    client = MlflowClient(tracking_uri=uri)
    lineage = run.lineage()
    run_id = lineage.get("mlflow_run")
    if not run_id or lineage.get("mlflow_uri") != shown or not knows(client, run_id):
        run_id = begin(client, run, settings, uri, store)
        run.set_lineage(mlflow_run=run_id, mlflow_uri=shown)
    log_rounds(client, run_id, run)
    log_quality(client, run_id, run)
    if status != "RUNNING":
        log_files(client, run_id, run, settings)
        if status == "FINISHED" and settings.tracking.model and not client.list_artifacts(run_id, "model"):
            # Advice on annotations of `predict`: the signature is given. MLflow sets filters of its own for it.
            with warnings.catch_warnings(record=True):
                from review.serving import log_final_model

            log_final_model(run, client, run_id, uri)
    if status == "RUNNING":
        client.update_run(run_id, status=status)
    else:
        client.set_terminated(run_id, status=status)
    return run_id


def knows(client: Any, run_id: str) -> bool:
    """Whether MLflow has a run: its store may be a new one."""
    from mlflow.exceptions import MlflowException

    try:
        client.get_run(run_id)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return False
        raise
    return True


def begin(client: Any, run: RunFolder, settings: Settings, uri: str, store: Path) -> str:
    """A new MLflow run with parameters, lineage tags and data sets."""
    from mlflow.entities import Dataset, DatasetInput, InputTag, Param, RunTag

    experiment_id = experiment_of(client, settings.tracking.experiment, uri, store)
    run_id = client.create_run(experiment_id, run_name=run.name).info.run_id
    params = [Param(key, str(value)[:6000]) for key, value in flatten(settings).items()]
    client.log_batch(run_id, params=params[:100], tags=[RunTag(k, v) for k, v in tags(run).items()])
    lineage = run.lineage()
    inputs = [
        DatasetInput(
            Dataset(f"{settings.data.name} {what}", lineage[what]["digest"][:36], "local", lineage[what]["folder"]),
            [InputTag("mlflow.data.context", what)],
        )
        for what in ("data", "partition")
    ]
    client.log_inputs(run_id, inputs)
    return run_id


def experiment_of(client: Any, name: str, uri: str, store: Path) -> str:
    """The id of an experiment, made where it is not there; two runs may want it at the same moment."""
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        where = (store / "artifacts" / name).as_uri() if uri.startswith("sqlite") else None
        try:
            return str(client.create_experiment(name, artifact_location=where))
        except MlflowException:
            experiment = client.get_experiment_by_name(name)
            if experiment is None:
                raise
    return str(experiment.experiment_id)


def tags(run: RunFolder) -> dict[str, str]:
    """The lineage as tags: from a number in MLflow back to code, data and settings."""
    lineage = run.lineage()
    found = {
        "shoal.run": run.name,
        "shoal.run_folder": str(run.path),
        "shoal.settings_sha256": lineage.get("settings_sha256"),
        "shoal.data_sha256": lineage["data"]["digest"],
        "shoal.data_dvc": lineage["data"].get("dvc"),
        "shoal.partition_sha256": lineage["partition"]["digest"],
        "shoal.partition_dvc": lineage["partition"].get("dvc"),
        "shoal.git_commit": (lineage.get("git") or {}).get("commit"),
        "shoal.git_dirty": (lineage.get("git") or {}).get("dirty"),
        "shoal.prefect_flow_run": (lineage.get("prefect") or {}).get("flow_run"),
    }
    return {key: str(value) for key, value in found.items() if value is not None}


def log_rounds(client: Any, run_id: str, run: RunFolder) -> None:
    """Metrics of the rounds that MLflow does not have yet, and of their clients: one batch a round, step = round."""
    from mlflow.entities import Metric

    have = {metric.step for metric in client.get_metric_history(run_id, "clients")}
    rounds = run.table("rounds")
    new = rounds[~rounds["round"].isin(have)] if len(rounds) else rounds
    losses = client_losses(run, set(new["round"])) if len(new) and run.settings().tracking.clients else {}
    for row in new.to_dict("records"):
        step = int(row["round"])
        stamp = int(row["finished_at"] * 1000)
        found = [
            Metric(str(key), float(value), stamp, step)
            for key, value in row.items()
            if key not in NOT_METRICS and pd.notna(value) and key != "clients"
        ]
        found += [Metric(name, value, stamp, step) for name, value in losses.get(step, {}).items()]
        # The count of clients goes last: a round counts as logged once it is there.
        found.append(Metric("clients", float(row["clients"]), stamp, step))
        for start in range(0, len(found), BATCH):
            client.log_batch(run_id, metrics=found[start : start + BATCH])


def client_losses(run: RunFolder, rounds: Container[int]) -> dict[int, dict[str, float]]:
    """The clients' mean local loss in some rounds: `client/NAME/loss` of up to `CLIENTS` clients, else their spread."""
    rows = run.table("clients")
    if "loss" not in rows:
        return {}
    names = metric_names(client_names(load_partition(Path(run.lineage()["partition"]["folder"]))))
    if METHODS[run.settings().method.name].pooled:
        names = ["all"]
    found: dict[int, dict[str, float]] = {}
    for round, part in rows.dropna(subset=["loss"]).groupby("round"):
        if round not in rounds:
            continue
        losses = part["loss"]
        if len(names) <= CLIENTS:
            numbers = {f"client/{names[k]}/loss": float(loss) for k, loss in zip(part["client"], losses, strict=True)}
        else:
            spread = {"min": losses.min(), "median": losses.median(), "max": losses.max()}
            numbers = {f"client/{what}/loss": float(value) for what, value in spread.items()}
        found[int(round)] = numbers
    return found


def metric_names(names: Sequence[str]) -> list[str]:
    """Names of clients as MLflow takes them in a metric's: other characters become _, and no two are equal."""
    plain = [re.sub(r"[^\w\-. :]", "_", name) for name in names]
    return [
        name if name.strip(". ") and plain.count(name) == 1 else f"{name.replace('.', '_')}-{k}"
        for k, name in enumerate(plain)
    ]


def log_quality(client: Any, run_id: str, run: RunFolder) -> None:
    """The numbers that need no labels, once, at the round that they are of."""
    from mlflow.entities import Metric

    facts = cluster_facts(run)
    if facts is None or any(m.step == facts["round"] for m in client.get_metric_history(run_id, "largest_cluster")):
        return
    stamp = int((run.path / FACTS).stat().st_mtime * 1000)
    client.log_batch(run_id, metrics=[Metric(k, v, stamp, facts["round"]) for k, v in facts["quality"].items()])


def log_files(client: Any, run_id: str, run: RunFolder, settings: Settings) -> None:
    """Settings, lineage, tables, figures, report and checkpoints as artifacts.

    With `tracking.clients` false none of what tells of single clients: rounds, settings and the model alone.
    """
    told = settings.tracking.clients
    single = ("events.jsonl", "clients.parquet", TABLE, FACTS, CENTRES, "report.html")
    for name in ("settings.yaml", "lineage.json", "rounds.parquet", *(single if told else ())):
        if (run.path / name).exists():
            client.log_artifact(run_id, str(run.path / name))
    if told and any(run.figures.rglob("*.png")):
        client.log_artifacts(run_id, str(run.figures), "figures")
    clients = run.table("clients")
    if told and len(clients):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "clients.json"
            path.write_text(clients.to_json(orient="split", index=False))
            client.log_artifact(run_id, str(path), "tables")
    full = [r for r in rounds_done(run) if has_server(run, r)]
    wanted = {"none": [], "final": full[-1:], "all": full}[settings.tracking.checkpoints]
    for round in wanted:
        place = f"checkpoints/round-{round:04d}"
        if not client.list_artifacts(run_id, place):
            with tempfile.TemporaryDirectory() as folder:
                copy_checkpoint(RoundPaths(run.path, round), Path(folder), METHODS[settings.method.name], told)
                client.log_artifacts(run_id, folder, place)


def copy_checkpoint(paths: RoundPaths, folder: Path, method: type[Method], told: bool) -> None:
    """The server state of a round as MLflow is to have it: single clients' updates only where enrolment needs them.

    Args:
        paths: of the round.
        folder: where to put it.
        method: of the run.
        told: whether anything of single clients may be told (`tracking.clients`), the manifest too.
    """
    server = load_server(paths.server)
    kept = server.without(*method.updates_for_rounds, *(() if told else method.updates_for_enrolment))
    if kept.tensors.keys() == server.tensors.keys():
        shutil.copy(paths.server, folder)
    else:
        save_server(folder / SERVER, kept, sync=False)
    if told:
        shutil.copy(paths.manifest, folder)
