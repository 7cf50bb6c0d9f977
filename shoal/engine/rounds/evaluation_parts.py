"""Evaluations in parts: every worker looks at some batches of all samples, then one works out the metrics.

A pass of all samples through the model is most of what an evaluation costs. Batches are the same in any number of
parts, and a part's file holds just what the evaluation would have had of its batches: the metrics have the same bits.
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
"""Fewer samples are evaluated sooner by one worker than several workers are asked."""

MIN_PART_SAMPLES_ON_GPU = 65_536
"""Likewise on a GPU, which its workers share: 18,000 images took 1.9 s in four parts on an H100, and 0.6 s in one."""


def parts_for(samples: int, workers: int, device: str) -> int:
    """Return in how many parts workers evaluate so many samples; below two it does not pay to share them."""
    least = MIN_PART_SAMPLES_ON_GPU if device == "cuda" else MIN_PART_SAMPLES
    return min(workers, samples // least)


def evaluate_in_parts(active_run: ActiveRun, request: Evaluate, workers: int) -> Answer:
    """Have a server state evaluated, the pass of all samples through its model shared among workers where that pays.

    Args:
        active_run: the run.
        request: the evaluation; its state lies where its checkpoint is being made.
        workers: how many can be asked at once, all of which see the run's folder.

    Returns:
        As of a worker that evaluates by itself; what the state is judged with lies beside it already, if it was found.

    Raises:
        WorkerLost: one of them ended in the middle.
    """
    opened = active_run.opened
    use = opened.method.shared_in_evaluation
    samples = len(opened.partition.sample) + opened.prepared.spec.test
    parts = parts_for(samples, workers, opened.lineage.resolved.device)
    if parts < 2 or use == "nothing" or (use == "features" and not request.final):
        return active_run.call(request)
    about = request.run, request.round, request.server, request.memory_index, request.final
    found = active_run.call(Recalibrate(*about, request.deadline))
    if isinstance(found, Failed):
        return found
    assert isinstance(found, Evaluated)
    (request.server.parent / JUDGED).unlink(missing_ok=True)
    save_judged(request.server.parent, found)
    states = [False, True] if found.judged and request.final else [False]
    asked = [
        EvaluateShard(*about, part, parts, averaged, request.deadline) for averaged in states for part in range(parts)
    ]
    with ThreadPoolExecutor(parts, thread_name_prefix="parts") as threads:
        answers = list(threads.map(active_run.call, asked))
    if failed := next((answer for answer in answers if isinstance(answer, Failed)), None):
        return failed
    answer = active_run.call(replace(request, parts=parts))
    if isinstance(answer, Evaluated):
        slowest = max(each.seconds for each in answers if isinstance(each, Evaluated))
        return Evaluated(answer.metrics, found.seconds + slowest * len(states) + answer.seconds)
    return answer


def save_judged(folder: Path, answer: Evaluated) -> None:
    """Keep beside a state what it is judged with, if anything is."""
    if answer.judged:
        save_tensors(folder / JUDGED, {name: torch.tensor(array) for name, array in answer.judged.items()})
