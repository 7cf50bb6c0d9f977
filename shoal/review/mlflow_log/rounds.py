"""A run's numbers as MLflow's metrics: in sections, each at its round, and none of them logged twice.

MLflow groups charts in sections, by the part before the last `/` of a metric's name, and shows the sections in
alphabetical order: these names put scores before what a run costs.

    privacy/epsilon_sent ...      privacy budget spent
    score/acc  score/nmi ...      scores of the last evaluation
    site/bytes_up A ...           what site A sent and got, and its seconds, where samples lie at sites
    structure/balance ...         sizes and number of clusters
    time/round ...                seconds of the parts of a round
    traffic/bytes_up ...          bytes sent
    training/loss ...             the clients' mean local loss, and how many clients took part

A tag that is written with the metrics says which round MLflow has last: a sync reads the manifests of new rounds, and
requests no history. A store that was lost or replaced has no such tag, and gets every round.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.checkpoint import load_manifest, rounds_done
from shoal.engine.store.codec import StoreError
from shoal.engine.store.lineage import SiteVersion
from shoal.engine.store.manifest import Manifest
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.tables import round_row
from shoal.review.results.clusters import cluster_facts

ROUNDS_LOGGED = "mlflow.shoal.rounds_logged"
"""Tag: the last round whose metrics MLflow has."""
VERDICT = "verdict"
VERDICT_REASON = "verdict.reason"
"""Tags: what a run's clusters or features are worth, and why."""
ROUND_FACTS = ("clients", "left_out", "step", "cluster_round")
"""Numbers that describe a round and do not measure it."""
CLUSTER_FACTS = ("balance", "changed", "diverged", "empty", "below_root")
"""Numbers about clusters without the word in their names."""


def metric_name(name: str) -> str:
    """Return the name in MLflow of a number of a run's tables: with its section.

    >>> metric_name("acc"), metric_name("bytes_up"), metric_name("seconds_train"), metric_name("smallest_cluster")
    ('score/acc', 'traffic/bytes_up', 'time/train', 'structure/smallest_cluster')
    """
    if name.startswith("seconds_"):
        return f"time/{name.removeprefix('seconds_')}"
    if name.startswith("bytes_"):
        section = "traffic"
    elif name in ROUND_FACTS or "loss" in name.split("_"):
        section = "training"
    elif name in CLUSTER_FACTS or "cluster" in name:
        section = "structure"
    elif name.startswith("epsilon"):
        section = "privacy"
    else:
        section = "score"
    return f"{section}/{allowed_name(name)}"


def allowed_name(name: str) -> str:
    """Return a name in which each character that MLflow refuses is replaced by _."""
    return re.sub(r"[^\w\-. :]", "_", name)


def log_rounds(client: Any, logged: Any, run: RunFolder, settings: Settings) -> None:
    """Log the rounds that MLflow does not have yet.

    Args:
        client: an MlflowClient.
        logged: the MLflow run.
        run: the run's folder.
        settings: of the run.
    """
    from mlflow.entities import Metric

    first = int(logged.data.tags.get(ROUNDS_LOGGED, 0)) + 1
    last = max([run.status().round, *rounds_done(run)])  # the status of an interrupted run may be one behind
    if first > last:
        return
    sites = run.lineage().sites if settings.tracking.clients else {}
    lost = lost_rounds(run)
    metrics = []
    for round in range(first, last + 1):
        try:
            manifest = load_manifest(run, round)
        except StoreError:
            if round in lost:
                continue  # the run's tables do not have it either
            raise
        stamp = int(manifest.finished_at * 1000)
        values = {**round_metrics(manifest), **costs_of_sites(manifest, sites)}
        metrics += [Metric(name, value, stamp, round) for name, value in values.items()]
    client.log_batch(logged.info.run_id, metrics=metrics)
    # Last: after a kill before it the same metrics are logged again, and MLflow keeps equal ones once.
    client.set_tag(logged.info.run_id, ROUNDS_LOGGED, str(last))


def lost_rounds(run: RunFolder) -> set[int]:
    """Return the rounds whose manifests were damaged when the run was resumed, by its events."""
    return {event.round for event in run.events() if event.kind == "manifest_unreadable"}


def round_metrics(manifest: Manifest) -> dict[str, float]:
    """Return the numbers of a round by their names in MLflow, without those of single clients."""
    record = manifest.record
    if record is None:
        return {}
    row = round_row(manifest, record)
    metrics = {metric_name(name): float(row[name]) for name in row if name not in ("round", "finished_at")}
    # A run's page lists metrics in the order in which they were logged first: scores, then what the round cost.
    return {name: value for name, value in sorted(metrics.items()) if not math.isnan(value)}


def costs_of_sites(manifest: Manifest, sites: Mapping[str, SiteVersion]) -> dict[str, float]:
    """Return what each site sent and got in a round, in bytes, and its seconds.

    Args:
        manifest: of the round.
        sites: of the run, by name; empty: nothing is logged about single sites.
    """
    if manifest.record is None:
        return {}
    costs = {}
    for name, site in sites.items():
        rows = [row for row in manifest.record.clients if row.client in site.clients]
        for cost in ("bytes_up", "bytes_down", "seconds"):
            costs[f"site/{cost} {allowed_name(name)}"] = float(sum(getattr(row, cost) for row in rows))
    return costs


def quality_metrics(run: RunFolder) -> tuple[int, dict[str, float]]:
    """Return the round of the cluster table and the numbers that judge it by MLflow's names; (0, {}) without one."""
    facts = cluster_facts(run)
    if facts is None:
        return 0, {}
    return facts.round, {metric_name(name): float(value) for name, value in facts.quality.items()}


def log_quality(client: Any, run_id: str, run: RunFolder) -> None:
    """Log verdict and numbers of the clusters at their round.

    Args:
        client: an MlflowClient.
        run_id: the MLflow run.
        run: the run's folder.
    """
    from mlflow.entities import Metric, RunTag

    facts = cluster_facts(run)
    if facts is None:
        return
    round, values = quality_metrics(run)
    stamp = round_stamp(run, round)
    metrics = [Metric(name, value, stamp, round) for name, value in values.items()]
    verdict = []
    if facts.verdict is not None:
        verdict = [RunTag(VERDICT, facts.verdict.word), RunTag(VERDICT_REASON, facts.verdict.reason)]
    client.log_batch(run_id, metrics=metrics, tags=verdict)


def round_stamp(run: RunFolder, round: int) -> int:
    """Return when a round ended, in milliseconds since the epoch; without its manifest, when the run last changed."""
    try:
        return int(load_manifest(run, round).finished_at * 1000)
    except StoreError:
        return int((run.status().updated or 0) * 1000)
