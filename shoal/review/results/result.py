"""The result of a run, read from its folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from shoal.core.errors import ShoalError
from shoal.data.partition.table import Partition, load_partition
from shoal.data.sets.prepared import PreparedSet, open_prepared
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.scores.metrics import METRICS
from shoal.methods.scores.verdict import Verdict
from shoal.review.results.clusters import cluster_facts, quality

WAYS = {"up": "to the server", "down": "from the server", "d2d": "between clients"}
"""The ways of a message, in words."""


@dataclass(frozen=True)
class RunResult:
    """The summary of a run; its JSON is what `shoal run --json` ends with.

    Args:
        run: the run's folder.
        status: running, finished, interrupted or failed.
        rounds: rounds done.
        metrics: by name, of the last evaluated round.
        quality: the numbers that judge the cluster table (`shoal.review.results.clusters.quality`); empty where samples
            have no clusters.
        bytes: sent in all rounds: up (to the server), down (from it) and d2d (between clients).
        seconds: of all rounds.
        mlflow_run: id of the run in MLflow, if it was logged.
        weights_sha256: digest of the final server state, if the run is finished.
        verdict: what its clusters or features are worth, and why; None where samples have no clusters.
    """

    run: str
    status: str
    rounds: int
    metrics: dict[str, float]
    quality: dict[str, float]
    bytes: dict[str, int]
    seconds: float
    mlflow_run: str | None
    weights_sha256: str | None
    verdict: Verdict | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON."""
        return asdict(self)


def run_result(run: RunFolder) -> RunResult:
    """Return the result of a run so far."""
    status = run.status()
    rounds = run.table("rounds")
    skip = ("round", "clients", "left_out", "finished_at")
    names = [c for c in rounds.columns if c not in skip and not c.startswith(("bytes_", "seconds_"))]
    evaluated = rounds[names].dropna(how="all").tail(1).dropna(axis=1).astype(float)
    costs = rounds.reindex(columns=[*(f"bytes_{way}" for way in WAYS), "seconds_round"]).sum()
    facts = cluster_facts(run)
    verdict = None
    if facts is not None:
        verdict = facts.verdict
    return RunResult(
        run=str(run.path),
        status=status.state,
        rounds=status.round,
        metrics=next(iter(evaluated.to_dict("records")), {}),
        quality=quality(run),
        bytes={way: int(costs[f"bytes_{way}"]) for way in WAYS},
        seconds=round(float(costs["seconds_round"]), 3),
        mlflow_run=status.tracking.mlflow_run,
        weights_sha256=status.weights_sha256,
        verdict=verdict,
    )


def shown_metrics(result: RunResult) -> dict[str, float]:
    """Return the numbers of a result in the order in which tables show them.

    First the measures of quality that have a description, in its order, then quality without labels, then other
    metrics. Last comes what is no measure of quality: equally full clusters are right only where classes are equally
    frequent, and a random assignment has a `balance` of 1.
    """
    metrics = dict(result.metrics)
    neither = [metric.name for metric in METRICS if metric.better == "neither"]
    last = {name: metrics.pop(name) for name in neither if name in metrics}
    first = {metric.name: metrics.pop(metric.name) for metric in METRICS if metric.name in metrics}
    return {**first, **result.quality, **metrics, **last}


def run_data(run: RunFolder) -> tuple[PreparedSet, Partition] | None:
    """Return the data set and the partition of a run; None where either is not here, or is another one now.

    Args:
        run: the run's folder.
    """
    lineage = run.lineage()
    try:
        prepared = open_prepared(run.folder_of("data"))
        partition = load_partition(run.folder_of("partition"))
    except (ShoalError, OSError):
        return None
    same = prepared.manifest.digest == lineage.data.digest and partition.digest == lineage.partition.digest
    if not same:
        return None
    return prepared, partition
