"""Evaluations in parts: every worker predicts some batches of all samples, then one worker computes the metrics.

The pass of all samples through the model is the main cost of an evaluation. Batches are the same in any number of
parts, and a part's file holds exactly the predictions of its batches: the metrics have the same bits.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch

from shoal.engine.messages.wire import Answer, Evaluate, Evaluated, EvaluateShard, Failed, Recalibrate
from shoal.engine.rounds.active_run import ActiveRun
from shoal.engine.store.codec import save_tensors
from shoal.engine.store.round_paths import JUDGED

MIN_PART_SAMPLES = 4096
"""Smallest part in samples: one worker evaluates fewer samples faster than several do."""
MIN_PART_SAMPLES_ON_GPU = 65_536
"""The same on a GPU, which its workers share: 18,000 images took 1.9 s in four parts on an H100, and 0.6 s in one."""


def parts_for(samples: int, workers: int, device: str) -> int:
    """Return the number of parts in which to evaluate samples; below two, one worker evaluates them all."""
    part_samples = MIN_PART_SAMPLES
    if device == "cuda":
        part_samples = MIN_PART_SAMPLES_ON_GPU
    return min(workers, samples // part_samples)


def evaluate_in_parts(active_run: ActiveRun, request: Evaluate, workers: int) -> Answer:
    """Evaluate a server state; several workers share the pass of all samples through the model if that is faster.

    Args:
        active_run: the run.
        request: the evaluation; its state is in the scratch folder of its checkpoint.
        workers: number of workers at once, which all see the run's folder.

    Returns:
        The answer of a worker that evaluates alone; replaced tensors are in the file beside the state.

    Raises:
        WorkerLost: one of them ended in the middle.
    """
    opened = active_run.opened
    use = opened.method.shared_in_evaluation
    samples = len(opened.partition.sample) + opened.prepared.spec.test
    parts = parts_for(samples, workers, opened.lineage.resolved.device)
    if parts < 2 or use == "nothing" or (use == "features" and not request.final):
        return active_run.call(request)
    state = request.run, request.round, request.server, request.clients, request.final
    found = active_run.call(Recalibrate(*state, deadline=request.deadline))
    if isinstance(found, Failed):
        return found
    assert isinstance(found, Evaluated)
    (request.server.parent / JUDGED).unlink(missing_ok=True)
    save_judged(request.server.parent, found)
    states = [False]
    if found.judged and request.final:
        states = [False, True]
    shards = [
        EvaluateShard(*state, part, parts, averaged, deadline=request.deadline)
        for averaged in states
        for part in range(parts)
    ]
    with ThreadPoolExecutor(parts, thread_name_prefix="parts") as threads:
        answers = list(threads.map(active_run.call, shards))
    if failed := next((answer for answer in answers if isinstance(answer, Failed)), None):
        return failed
    answer = active_run.call(replace(request, parts=parts))
    if isinstance(answer, Evaluated):
        slowest = max(each.seconds for each in answers if isinstance(each, Evaluated))
        return Evaluated(answer.metrics, found.seconds + slowest * len(states) + answer.seconds)
    return answer


def save_judged(folder: Path, answer: Evaluated) -> None:
    """Write the tensors that replace those of a state in its evaluation to the file beside it, if there are any."""
    if answer.judged:
        save_tensors(folder / JUDGED, {name: torch.tensor(array) for name, array in answer.judged.items()})
