"""The step of the loop that aggregates: from the finished work of clients to the next state, in an open checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.engine.messages.fixed_point import sum_of_parts
from shoal.engine.messages.inspection import RoundInspection, check_state
from shoal.engine.rounds.buffered_rounds import BufferedRounds
from shoal.engine.rounds.outcomes import RoundOutcomes
from shoal.engine.rounds.round_state import RoundState
from shoal.engine.rounds.runner import Runner
from shoal.engine.settings.one_thread import one_thread
from shoal.engine.store.checkpoint import adopt, open_round, sync_files
from shoal.engine.store.finished_work import FinishedWork
from shoal.engine.store.memory_index import MemoryIndex
from shoal.engine.store.round_paths import RoundPaths, inbox_path, memory_path
from shoal.engine.store.run_facts import RunFacts
from shoal.engine.store.run_folder import RunError, RunFolder
from shoal.methods.contract.base import Server, Update
from shoal.methods.contract.context import AnswersRefused


@dataclass(frozen=True)
class Aggregation:
    """Aggregates the updates of rounds.

    Args:
        facts: of the run.
        buffered: rebases answers that began from an older state.
        runner: executes the work.
    """

    facts: RunFacts
    buffered: BufferedRounds
    runner: Runner

    def aggregate(
        self, before: RoundState, outcomes: RoundOutcomes, needed: int, inspection: RoundInspection
    ) -> RoundState | None:
        """Make the next state from the work of the clients that are done; a client whose message is refused is not.

        Args:
            before: the state before the round.
            outcomes: of the round.
            needed: number of clients that must be accepted.
            inspection: of the clients' answers; to a sum every client must be accepted.

        Returns:
            The state, whose checkpoint is open; None if too few clients are accepted.

        Raises:
            StoreError: a stored answer was damaged; when the run is resumed its client is trained again.
            RunError: the method's state has another round or is not finite.
        """
        if inspection.plan is not None:
            needed = len(inspection.plan.clients)
        if len(outcomes.done) < needed:
            return None
        name = f"round {before.round + 1}, aggregate"
        return self.runner.submit(
            "aggregate", name, lambda: self.next_state(before, outcomes, needed, inspection)
        ).result()

    def next_state(
        self, before: RoundState, outcomes: RoundOutcomes, needed: int, inspection: RoundInspection
    ) -> RoundState | None:
        """Do the work of `aggregate`."""
        inspection.done = [outcomes.done[client] for client in sorted(outcomes.done)]
        with one_thread():
            following = self.next_server(before.server, inspection, needed)
        outcomes.refuse(inspection.refused)
        if following is None:
            return None
        index = memory_index_after(self.facts.run, following.round, before.memory_index, inspection.done)
        open_round(self.facts.run, following, index)
        return RoundState(following, index)

    def next_server(self, before: Server, inspection: RoundInspection, needed: int) -> Server | None:
        """Aggregate the accepted updates, in order of client id, read one at a time.

        Which changes are too large is known only after the last update; then aggregate again without them.
        """
        method = self.facts.method
        settled = False
        while not settled:
            following = None
            failure: Exception | None = None
            try:
                following = method.aggregate(before, self.updates(before, inspection))
            except AnswersRefused as error:
                failure = error
                inspection.refuse(error.reasons)
            except Exception as error:  # perhaps because of an answer that is refused below
                failure = error
            settled = inspection.settle() and not isinstance(failure, AnswersRefused)
            if len(inspection.done) < needed:
                return None
            if settled and failure is not None:
                raise failure
        assert following is not None
        check_state(method, before, following)
        if following.round != before.round + 1:
            raise RunError(f"method {method.name!r} aggregated round {before.round + 1} into {following.round}")
        return following

    def updates(self, before: Server, inspection: RoundInspection) -> Iterator[Update]:
        """Return the updates that the method aggregates: those of the clients, or one in place of their sum."""
        updates = self.buffered.rebased(before, inspection.updates())
        method = self.facts.method
        if inspection.plan is None:
            return updates
        return sum_of_parts(updates, method.declared(before, 0, 0), inspection.plan, mean=method.averages)


def memory_index_after(run: RunFolder, round: int, before: MemoryIndex, done: Sequence[FinishedWork]) -> MemoryIndex:
    """Return the memory and inbox versions after a round, and give the files their final names.

    Args:
        run: the run's folder.
        round: the round.
        before: the index after the round before.
        done: the clients' work, in order of their ids.
    """
    paths = RoundPaths(run.path, round)
    memory: dict[int, str] = {}
    sent: dict[tuple[int, int], str] = {}
    adopted: list[Path] = []

    def keep(name: str, target: str) -> None:
        adopt(run, paths.work / name, target)
        adopted.append(run.path / target)

    for work in done:
        if work.memory is not None:
            keep(work.memory, memory_path(work.client, round))
            memory[work.client] = work.sha256[work.memory]
        for peer in sorted(work.peers):
            name = work.peer(peer)
            keep(name, inbox_path(peer, work.client, round))
            sent[peer, work.client] = work.sha256[name]
    sync_files(adopted)
    sync_files(sorted({path.parent for path in adopted}))
    return before.after(round, [work.client for work in done], memory, sent)
