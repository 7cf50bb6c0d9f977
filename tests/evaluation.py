"""Evaluate a run's newest server state again."""

from __future__ import annotations

from shoal.engine.messages.wire import Evaluate, EvaluateAnswer, Failure
from shoal.engine.settings.hardware import device_here
from shoal.engine.store.kept_state import read_state
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.store.run_folder import RunError, RunFolder
from shoal.engine.workers.worker import Worker


def evaluate_state(folder: RunFolder) -> dict[str, float]:
    """Return the metrics of the newest server state, computed on a GPU if the run uses one and this machine has one.

    Raises:
        RunError: there is no state, or the evaluation failed. StoreError: the state is damaged.
    """
    checkpoint = read_state(folder)
    round = checkpoint.server.round
    state = RoundPaths(folder.path, round).server
    device = device_here(folder.lineage().resolved.device)
    answer = Worker(device).handle(Evaluate(folder.path, round, state, checkpoint.memory_index.clients(), final=True))
    if isinstance(answer, Failure):
        raise RunError(f"run {folder.name} could not be evaluated: {answer.error}")
    assert isinstance(answer, EvaluateAnswer)
    return answer.metrics
