"""The step of the loop that evaluates a server state: one worker, or all of them, each of which predicts a part.

The pass of all samples through the model is the main cost of an evaluation. Batches are the same in any number of
parts, and a part's file holds exactly the predictions of its batches: the metrics have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from shoal.engine.messages.wire import Answer, Call, Evaluate, Evaluated, EvaluateShard, Failed, Recalibrate
from shoal.engine.rounds.round_state import RoundState
from shoal.engine.rounds.runner import Runner
from shoal.engine.rounds.site_evaluation import SiteEvaluation
from shoal.engine.settings.hardware import release_freed_memory
from shoal.engine.store.codec import save_tensors
from shoal.engine.store.memory_index import ClientFiles
from shoal.engine.store.round_paths import JUDGED, SERVER, RoundPaths
from shoal.engine.store.run_facts import RunFacts
from shoal.engine.store.run_folder import RunError
from shoal.engine.workers.worker_processes import WorkerLost

MIN_PART_SAMPLES = 4096
"""Smallest part in samples: one worker evaluates fewer samples faster than several do."""
MIN_PART_SAMPLES_ON_GPU = 65_536
"""The same on a GPU, which its workers share: 18,000 images took 1.9 s in four parts on an H100, and 0.6 s in one."""


@dataclass(frozen=True)
class EvaluationStep:
    """Evaluates server states.

    Args:
        facts: of the run.
        call: has a worker do a request.
        runner: executes the work.
        slots: number of requests that are worked on at once.
        tell: logs an event (its kind, and facts by name).
    """

    facts: RunFacts
    call: Call
    runner: Runner
    slots: int
    tell: Callable[..., None]

    def evaluate(self, state: RoundState, *, final: bool) -> dict[str, float]:
        """Return the metrics of a state in an open checkpoint; empty between evaluations.

        Args:
            state: the state.
            final: whether it is the last of the run, which is always evaluated.

        Raises:
            RunError: the evaluation failed. WorkerLost: a worker was lost twice.
        """
        if not final and state.round % self.facts.settings.evaluate.every:
            return {}
        if final:
            release_freed_memory()  # of the rounds' messages
        name = f"round {state.round}, evaluate"
        try:
            answer = self.runner.submit("evaluate", name, lambda: self.answer(state, final=final)).result()
        except WorkerLost as lost:
            self.tell("slot_lost", round=state.round, message=str(lost))
            answer = self.runner.submit("evaluate", name, lambda: self.answer(state, final=final)).result()
        if isinstance(answer, Failed):
            raise RunError(f"round {state.round} could not be evaluated: {answer.error}")
        assert isinstance(answer, Evaluated)
        return dict(answer.metrics)

    def answer(self, state: RoundState, *, final: bool) -> Answer:
        """Have workers evaluate a state; keep the tensors that replace its own beside it.

        Raises:
            WorkerLost: a worker ended in the middle.
        """
        if self.facts.sites:
            return self.answer_of_sites(state, final=final)
        clients: tuple[ClientFiles, ...] = ()
        if self.facts.method.evaluation_reads_memory:  # else no memories have to travel
            clients = state.memory_index.clients()
        scratch = RoundPaths(self.facts.run.path, state.round).scratch
        request = Evaluate(self.facts.run.path, state.round, scratch / SERVER, clients, final)
        parts = self.parts(final=final)
        if parts > 1:
            return self.answer_in_parts(request, parts)
        answer = self.call(request)
        if isinstance(answer, Evaluated):
            save_judged(scratch, answer)
        return answer

    def answer_of_sites(self, state: RoundState, *, final: bool) -> Answer:
        """Have the sites evaluate a state; arguments and errors as of `answer`."""
        sites = SiteEvaluation(self.facts, self.call)
        server = RoundPaths(self.facts.run.path, state.round).scratch / SERVER
        (server.parent / JUDGED).unlink(missing_ok=True)
        recalibrated = sites.recalibrate(server, state.round, state.memory_index, final=final)
        if not isinstance(recalibrated, Evaluated):
            return recalibrated
        save_judged(server.parent, recalibrated)
        return sites.evaluate(server, state.round, state.memory_index, final=final)

    def parts(self, *, final: bool) -> int:
        """Return the number of parts in which to evaluate; below two, one worker evaluates all samples."""
        use = self.facts.method.shared_in_evaluation
        if use == "nothing" or (use == "features" and not final):
            return 1
        samples = len(self.facts.partition.sample) + self.facts.spec.test
        part_samples = MIN_PART_SAMPLES
        if self.facts.lineage.resolved.device == "cuda":
            part_samples = MIN_PART_SAMPLES_ON_GPU
        return min(self.slots, samples // part_samples)

    def answer_in_parts(self, request: Evaluate, parts: int) -> Answer:
        """Evaluate with several workers, which share the pass of all samples through the model."""
        state = request.run, request.round, request.server, request.clients, request.final
        recalibrated = self.call(Recalibrate(*state))
        if isinstance(recalibrated, Failed):
            return recalibrated
        assert isinstance(recalibrated, Evaluated)
        (request.server.parent / JUDGED).unlink(missing_ok=True)
        save_judged(request.server.parent, recalibrated)
        shards = [EvaluateShard(*state, part, parts) for part in range(parts)]
        with ThreadPoolExecutor(parts, thread_name_prefix="parts") as threads:
            answers = list(threads.map(self.call, shards))
        if failed := next((answer for answer in answers if isinstance(answer, Failed)), None):
            return failed
        return self.call(replace(request, parts=parts))


def save_judged(folder: Path, answer: Evaluated) -> None:
    """Write the tensors that replace those of a state in its evaluation to the file beside it, if there are any."""
    if answer.judged:
        save_tensors(folder / JUDGED, {name: torch.tensor(array) for name, array in answer.judged.items()})
