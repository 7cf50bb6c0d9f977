"""Judging a run's newest server state anew."""

from __future__ import annotations

from engine.checkpoint import SERVER, newest_valid, round_folder
from engine.run_folder import RunError, RunFolder
from engine.worker import Worker


def evaluate_state(folder: RunFolder) -> dict[str, float]:
    """Metrics of the newest server state, computed anew.

    Raises:
        RunError: there is none, or the evaluation failed.
    """
    checkpoint = newest_valid(folder)
    if checkpoint is None:
        raise RunError(f"run {folder.name} has no round to evaluate yet")
    round = checkpoint.server.round
    request = {
        "do": "evaluate",
        "run": str(folder.path),
        "round": round,
        "server": str(round_folder(folder, round) / SERVER),
        "links": checkpoint.memory_index.plain(),
        "final": True,
    }
    answer = Worker().handle(request)
    if "error" in answer:
        raise RunError(f"run {folder.name} could not be evaluated: {answer['error']}")
    return answer["metrics"]
