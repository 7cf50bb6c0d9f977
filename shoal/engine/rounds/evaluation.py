"""The step of the loop that evaluates a server state, on one worker, or at the sites.

The pass of all samples through the model is the main cost of an evaluation. A worker of this machine has as many
threads for it as there are slots; each batch is the work of one thread, so that the metrics have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from shoal.engine.messages.wire import Answer, Call, Evaluate, EvaluateAnswer, Failure
from shoal.engine.rounds.round_state import RoundState
from shoal.engine.rounds.runner import Runner
from shoal.engine.rounds.site_evaluation import SiteEvaluation
from shoal.engine.settings.hardware import release_freed_memory
from shoal.engine.store.judged import save_judged
from shoal.engine.store.memory_index import ClientFiles
from shoal.engine.store.round_paths import SERVER, RoundPaths
from shoal.engine.store.run_facts import RunFacts
from shoal.engine.store.run_folder import RunError
from shoal.engine.workers.worker_processes import WorkerLost


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
        submit = partial(
            self.runner.submit, "evaluate", f"round {state.round}, evaluate", partial(self.answer, state, final=final)
        )
        try:
            answer = submit().result()
        except WorkerLost as lost:
            self.tell("slot_lost", round=state.round, message=str(lost))
            answer = submit().result()
        if isinstance(answer, Failure):
            raise RunError(f"round {state.round} could not be evaluated: {answer.error}")
        assert isinstance(answer, EvaluateAnswer)
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
        answer = self.call(Evaluate(self.facts.run.path, state.round, scratch / SERVER, clients, final, self.threads))
        if isinstance(answer, EvaluateAnswer):
            save_judged(scratch / SERVER, answer.judged)
        return answer

    def answer_of_sites(self, state: RoundState, *, final: bool) -> Answer:
        """Have the sites evaluate a state; arguments and errors as of `answer`."""
        server = RoundPaths(self.facts.run.path, state.round).scratch / SERVER
        sites = SiteEvaluation(self.facts, self.call, server, state.round, state.memory_index)
        recalibrated = sites.recalibrate(final=final)
        if not isinstance(recalibrated, EvaluateAnswer):
            return recalibrated
        save_judged(server, recalibrated.judged)
        return sites.evaluate(final=final)

    @property
    def threads(self) -> int:
        """The number of threads for an evaluation: the slots of this machine, whose other workers are idle then."""
        if self.facts.settings.workers.runner != "local" or self.facts.lineage.resolved.device == "cuda":
            return 1
        return self.slots
