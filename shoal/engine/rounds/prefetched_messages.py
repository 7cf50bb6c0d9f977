"""The messages of a round that are read while other clients still train."""

from __future__ import annotations

from shoal.engine.messages.inspection import Inspected, Inspection
from shoal.engine.messages.prefetcher import REUSE_MEMORY_BYTES
from shoal.engine.rounds.active_run import ActiveRun
from shoal.engine.store.finished_work import FinishedWork, read_done_file
from shoal.methods.contract.base import Server


class PrefetchedMessages:
    """Reads the messages of a round's clients as soon as they are done, while others still train.

    Args:
        active_run: the run.
        round: the round.
        server: the state before it.
    """

    def __init__(self, active_run: ActiveRun, round: int, server: Server) -> None:
        self._active_run = active_run
        self._round = round
        self._inspection = Inspection.from_opened(active_run.opened, server)
        model_bytes = sum(tensor.nbytes for tensor in server.model.values())
        self.worthwhile_while_training = model_bytes > REUSE_MEMORY_BYTES
        """Whether messages are so large that they should be read before the cohorts of their clients end."""

    def begin(self, work: FinishedWork) -> None:
        """Begin to read the message of a client that is done."""
        self._active_run.prefetcher.begin(self._round, work, self._inspected)

    def begin_finished(self, clients: list[int]) -> None:
        """Begin to read the messages of those clients that are done."""
        for client in clients:
            work = read_done_file(self._active_run.run, self._round, client)
            if work is not None:
                self.begin(work)

    def _inspected(self, work: FinishedWork) -> Inspected:
        samples = self._active_run.opened.federation.sizes[work.client]
        return self._inspection.answer(self._active_run.run, work, samples)
