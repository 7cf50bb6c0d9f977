"""What a run came to, read from its folder."""

from __future__ import annotations

from typing import Any

from tasks.runfolder import RunFolder


def run_result(run: RunFolder) -> dict[str, Any]:
    """The summary that `shoal run --json` ends with; metrics are those of the last evaluated round."""
    status = run.status()
    rounds = run.table("rounds")
    skip = {"round", "clients", "left_out", "bytes_up", "bytes_down", "bytes_d2d", "finished_at"}
    names = [c for c in rounds.columns if c not in skip and not c.startswith("seconds_")]
    evaluated = rounds.dropna(subset=names, how="all") if names else rounds[:0]
    last: dict[str, Any] = dict(evaluated.iloc[-1][names].dropna()) if len(evaluated) else {}
    return {
        "run": str(run.path),
        "status": status["state"],
        "rounds": int(status["round"]),
        "metrics": {name: float(value) for name, value in last.items()},
        "bytes": {k: int(rounds[f"bytes_{k}"].sum()) if len(rounds) else 0 for k in ("up", "down", "d2d")},
        "seconds": round(float(rounds["seconds_round"].sum()), 3) if len(rounds) else 0.0,
        "mlflow_run": run.lineage().get("mlflow_run"),
        "weights_sha256": status.get("weights_sha256"),
    }
