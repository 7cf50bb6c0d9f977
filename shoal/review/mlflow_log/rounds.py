"""A run's numbers as MLflow's metrics: in sections, each at the round that it is of, and never asked for again.

MLflow's charts come in sections, by what stands before the last `/` of a metric's name:

    score/acc  score/nmi ...      what the last evaluation says        loss/loss       the clients' mean local loss
    cluster/balance ...           sizes and number of clusters         loss/client/A   the loss of client A
    bytes/up  bytes/down ...      what was sent                        time/round ...  seconds of the parts of a round
    privacy/epsilon_sent ...      what may be told of a client         round/clients   who took part

How far MLflow has a run is a tag that is written with the metrics themselves: a sync reads the manifests of the rounds
that are new, and asks for no history. A store that was lost or replaced has no such tag, and gets every round.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.checkpoint import load_manifest
from shoal.engine.store.client_names import client_names
from shoal.engine.store.codec import StoreError
from shoal.engine.store.manifest import Manifest
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.registry import METHODS
from shoal.review.results.clusters import cluster_facts

BATCH = 900
"""Metrics in one call; MLflow takes 1,000 with tags."""
CLIENTS = 50
"""Of up to so many clients each has a loss curve of its own in MLflow."""
ROUNDS_LOGGED = "shoal.rounds_logged"
"""Tag: the last round whose metrics MLflow has."""
QUALITY_LOGGED = "shoal.quality_logged"
"""Tag: digest of the state whose quality without labels MLflow has."""
ROUND = ("clients", "left_out", "step", "cluster_round")
"""What a round is, and no measure of it."""
CLUSTER = ("balance", "changed", "diverged", "empty", "below_root", "adversaries_apart")
"""Of clusters, beside what has the word in its name."""


def metric_name(name: str) -> str:
    """A number of the tables of a run as MLflow calls it: with its section.

    >>> metric_name("acc"), metric_name("bytes_up"), metric_name("seconds_train"), metric_name("smallest_cluster")
    ('score/acc', 'bytes/up', 'time/train', 'cluster/smallest_cluster')
    """
    for start, section in (("bytes_", "bytes"), ("seconds_", "time")):
        if name.startswith(start):
            return f"{section}/{name.removeprefix(start)}"
    if name in ROUND:
        section = "round"
    elif name in CLUSTER or "cluster" in name:
        section = "cluster"
    elif name.startswith("epsilon"):
        section = "privacy"
    else:
        section = "loss" if "loss" in name.split("_") else "score"
    return f"{section}/{allowed_name(name)}"


def allowed_name(name: str) -> str:
    """A name with the characters that MLflow takes; others become _."""
    return re.sub(r"[^\w\-. :]", "_", name)


def client_metric_names(names: Sequence[str]) -> list[str]:
    """Names of clients as MLflow takes them in a metric's, no two of them equal."""
    kept = [allowed_name(name) for name in names]
    times = Counter(kept)
    return [
        name if name.strip(". ") and times[name] == 1 else f"{name.replace('.', '_')}-{k}"
        for k, name in enumerate(kept)
    ]


def log_rounds(client: Any, run_id: str, tags: Mapping[str, str], run: RunFolder, settings: Settings) -> None:
    """Log the rounds that MLflow does not have yet, as many as fit into each call.

    Args:
        client: an MlflowClient.
        run_id: the MLflow run.
        tags: of the MLflow run.
        run: the run's folder.
        settings: of the run.
    """
    from mlflow.entities import Metric

    first, last = int(tags.get(ROUNDS_LOGGED, 0)) + 1, last_round(run)
    if first > last:
        return
    names = names_of_clients(run, settings)
    waiting: list[Any] = []
    for round in range(first, last + 1):
        try:
            manifest = load_manifest(run, round)
        except StoreError:
            if round in lost_rounds(run):
                continue  # the run's tables lack it too
            raise
        stamp = int(manifest.finished_at * 1000)
        found = {**round_metrics(manifest), **client_losses(manifest, names)}
        if waiting and len(waiting) + len(found) > BATCH:
            send(client, run_id, waiting, round - 1)
            waiting = []
        waiting += [Metric(name, value, stamp, round) for name, value in found.items()]
    send(client, run_id, waiting, last)


def lost_rounds(run: RunFolder) -> set[int]:
    """Return the rounds whose manifests were damaged when the run was resumed, as its events say."""
    return {event.round for event in run.events() if event.kind == "manifest_unreadable"}


def last_round(run: RunFolder) -> int:
    """The last round that is done: the status of a run that was interrupted may be one behind."""
    last = run.status().round
    while RoundPaths(run.path, last + 1).manifest.is_file():
        last += 1
    return last


def send(client: Any, run_id: str, metrics: Sequence[Any], round: int) -> None:
    """Log metrics, and with the last of them the round up to which MLflow has them all."""
    from mlflow.entities import RunTag

    *calls, last = [metrics[start : start + BATCH] for start in range(0, len(metrics), BATCH)] or [[]]
    for part in calls:  # a round of very many metrics
        client.log_batch(run_id, metrics=part)
    client.log_batch(run_id, metrics=last, tags=[RunTag(ROUNDS_LOGGED, str(round))])


def round_metrics(manifest: Manifest) -> dict[str, float]:
    """The numbers of a round by their names in MLflow, without those of single clients."""
    record = manifest.record
    if record is None:
        return {}
    counted: dict[str, float] = {
        "clients": len(record.clients),
        "left_out": len(record.left_out),
        **record.totals(),
        **{f"seconds_{part}": value for part, value in vars(record.seconds).items()},
    }
    found = {metric_name(name): float(value) for name, value in (counted | dict(record.metrics)).items()}
    return {name: value for name, value in found.items() if not math.isnan(value)}


def names_of_clients(run: RunFolder, settings: Settings) -> list[str] | None:
    """What clients are called in MLflow; None where nothing is to be told of single ones."""
    if not settings.tracking.clients:
        return None
    if METHODS[settings.method.name].pooled:
        return ["all"]
    return _metric_names(run.path, run.lineage().partition.digest)


@lru_cache(4)
def _metric_names(run: Path, _: str) -> list[str]:
    """The names of a run's clients, once for all of its rounds: there may be a million.

    Args:
        run: the run's folder.
        _: digest of its partition, which tells it from another run that lay there.
    """
    return client_metric_names(client_names(RunFolder(run)))


def client_losses(manifest: Manifest, names: Sequence[str] | None) -> dict[str, float]:
    """The clients' mean local losses in a round: `loss/client/NAME` of up to `CLIENTS` clients, else their spread.

    Args:
        manifest: of the round.
        names: of all clients, as MLflow takes them; None: nothing is told.
    """
    if names is None or manifest.record is None:
        return {}
    rows = manifest.record.clients
    losses = {row.client: float(row.metrics["loss"]) for row in rows if row.metrics.get("loss") is not None}
    losses = {k: loss for k, loss in losses.items() if not math.isnan(loss)}
    if not losses:
        return {}
    if len(names) <= CLIENTS:
        return {f"loss/client/{names[k] if k < len(names) else k}": loss for k, loss in losses.items()}
    values = list(losses.values())
    spread = {"min": min(values), "median": median(values), "max": max(values)}
    return {f"loss/clients/{what}": value for what, value in spread.items()}


def quality_metrics(run: RunFolder) -> tuple[int, dict[str, float]]:
    """The round of the table of clusters and, by their names in MLflow, its numbers without labels; (0, {}) without."""
    facts = cluster_facts(run)
    if facts is None:
        return 0, {}
    return facts.round, {metric_name(name): float(value) for name, value in facts.quality.items()}


def log_quality(client: Any, run_id: str, tags: Mapping[str, str], run: RunFolder) -> None:
    """Log the numbers that need no labels, once, at the round that they are of. Arguments as of `log_rounds`."""
    from mlflow.entities import Metric, RunTag

    facts = cluster_facts(run)
    if facts is None or tags.get(QUALITY_LOGGED) == facts.weights_sha256:
        return
    round, found = quality_metrics(run)
    stamp = round_stamp(run, round)
    metrics = [Metric(name, value, stamp, round) for name, value in found.items()]
    client.log_batch(run_id, metrics=metrics, tags=[RunTag(QUALITY_LOGGED, facts.weights_sha256)])


def round_stamp(run: RunFolder, round: int) -> int:
    """When a round ended, in milliseconds since the epoch; of one whose manifest is lost, when the run last moved."""
    try:
        return int(load_manifest(run, round).finished_at * 1000)
    except StoreError:
        return int((run.status().updated or 0) * 1000)
