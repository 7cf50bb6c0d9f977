"""The result of a run, read from its folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from shoal.engine.store.run_folder import RunFolder
from shoal.methods.scores.metrics import METRICS
from shoal.review.results.clusters import quality


@dataclass(frozen=True)
class RunResult:
    """The result of a run; `shoal run --json` ends with its JSON.

    Args:
        run: the run's folder.
        status: running, finished, interrupted or failed.
        rounds: rounds done.
        metrics: by name, of the last evaluated round.
        quality: the numbers that need no labels (`shoal.review.results.clusters.quality`); empty where samples have no
            clusters.
        bytes: sent in all rounds: up (to the server), down (from it) and d2d (between clients).
        seconds: sum over all rounds.
        mlflow_run: id of the run in MLflow, if it was logged.
        weights_sha256: digest of the final server state, if the run is finished.
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

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON."""
        return asdict(self)


def run_result(run: RunFolder) -> RunResult:
    """Return the results of the run in a folder so far."""
    status = run.status()
    rounds = run.table("rounds")

    def total(column: str) -> float:
        return float(rounds[column].sum()) if len(rounds) else 0.0

    skip = {"round", "clients", "left_out", "bytes_up", "bytes_down", "bytes_d2d", "finished_at"}
    names = [c for c in rounds.columns if c not in skip and not c.startswith("seconds_")]
    evaluated = rounds[names].dropna(how="all")
    last: dict[str, Any] = {}
    if len(evaluated):
        last = evaluated.iloc[-1].dropna().to_dict()
    return RunResult(
        run=str(run.path),
        status=status["state"],
        rounds=int(status["round"]),
        metrics={name: float(value) for name, value in last.items()},
        quality=quality(run),
        bytes={direction: int(total(f"bytes_{direction}")) for direction in ("up", "down", "d2d")},
        seconds=round(total("seconds_round"), 3),
        mlflow_run=run.lineage().get("mlflow_run"),
        weights_sha256=status.get("weights_sha256"),
    )


def shown_metrics(result: RunResult) -> dict[str, float]:
    """Return the numbers of a result in the order in which tables show them.

    Measures of quality with a description come first, in the order of the descriptions, then other metrics, then
    quality without labels. Numbers that do not measure quality come last: equally large clusters are only right where
    classes are equally frequent, and a random assignment has a `balance` of 1.
    """
    described = [metric.name for metric in METRICS if metric.name in result.metrics]
    metrics = {name: result.metrics[name] for name in described} | result.metrics
    neither = [metric.name for metric in METRICS if metric.better == "neither"]
    last = {name: metrics.pop(name) for name in neither if name in metrics}
    return {**metrics, **result.quality, **last}
