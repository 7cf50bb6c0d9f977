"""Judging a run's newest server state anew."""

from __future__ import annotations

from shoal.engine.messages.wire import Evaluate, Evaluated, Failed
from shoal.engine.settings.hardware import device_here
from shoal.engine.store.kept_state import read_state
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.store.run_folder import RunError, RunFolder
from shoal.engine.workers.worker import Worker


def evaluate_state(folder: RunFolder) -> dict[str, float]:
    """Metrics of the newest server state, computed anew: on a GPU, where the run began on one and one is here.

    Raises:
        RunError: there is none, or the evaluation failed. StoreError: it is damaged.
    """
    checkpoint = read_state(folder)
    round = checkpoint.server.round
    state = RoundPaths(folder.path, round).server
    device = device_here(folder.lineage().resolved.device)
    answer = Worker(device).handle(Evaluate(folder.path, round, state, checkpoint.memory_index, final=True))
    if isinstance(answer, Failed):
        raise RunError(f"run {folder.name} could not be evaluated: {answer.error}")
    assert isinstance(answer, Evaluated)
    return answer.metrics
