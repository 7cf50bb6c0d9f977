"""Rounds whose messages are added up before the server reads them (`privacy.sums`): plans, and lost clients.

A sum needs the part of every client of its plan. A client that fails may try again within the attempt, and then sends
the same part. If the round goes on without it, a new attempt begins, whose masks are others, and the client stays out
of the run: an answer to both attempts would give it away.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.engine.messages.fixed_point import FEWEST_SUMMED
from shoal.engine.messages.wire import Call, Failure, Keys, ShareKeys, SumPlan
from shoal.engine.rounds.client_history import ClientHistory
from shoal.engine.rounds.outcomes import RoundFailed, RoundOutcomes
from shoal.engine.store.codec import read_sealed, write_sealed
from shoal.engine.store.finished_work import forget_work
from shoal.engine.store.run_facts import RunFacts
from shoal.engine.workers.worker_processes import WorkerLost

LOST = "lost.json"
"""File of the run that names the lost clients, with the round in which each was lost."""


@dataclass
class SummedRounds:
    """Makes the plans of sums; without `privacy.sums` there are none.

    Args:
        facts: of the run.
        call: has a worker do a request.
        history: gets the lost clients, which are not drawn again.
    """

    facts: RunFacts
    call: Call
    history: ClientHistory
    _keys: dict[int, str] = field(default_factory=dict)

    def resume(self) -> None:
        """Read which clients were lost.

        Raises:
            StoreError: the file is damaged.
        """
        path = self.facts.run.path / LOST
        if path.exists():
            self.history.lost = {int(client): round for client, round in read_sealed(path)["clients"].items()}

    def plan(self, round: int, clients: list[int]) -> SumPlan | None:
        """Return the plan of the next attempt of a round with these clients; None: messages are not added up.

        Raises:
            RoundFailed: there are too few clients, or the worker could not make their keys.
        """
        kind = self.facts.settings.privacy.sums
        if kind == "plain":
            return None
        if len(clients) < FEWEST_SUMMED:
            raise RoundFailed(
                f"round {round}: {len(clients)} clients are left, and privacy.sums: {kind} needs {FEWEST_SUMMED}, so "
                "that no sum is a client's own: start a new run with more clients"
            )
        attempt = 1 + sum(lost == round for lost in self.history.lost.values())
        samples = sum(self.facts.federation.sizes[client] for client in clients)
        keys = self.keys(clients) if kind == "masked" else None
        return SumPlan(attempt, tuple(clients), samples, keys)

    def keys(self, clients: list[int]) -> tuple[str, ...]:
        """Return the public keys of clients; these are made when they are first asked for."""
        tries = 1 + self.facts.settings.participation.retries
        missing = tuple(client for client in clients if client not in self._keys)
        while missing:
            tries -= 1
            try:
                answer = self.call(ShareKeys(self.facts.run.path, missing))
            except WorkerLost as lost:
                answer = Failure(str(lost))
            if isinstance(answer, Keys):
                self._keys |= answer.public
                break
            assert isinstance(answer, Failure)
            if not tries:
                raise RoundFailed(f"the keys of the masks were not made: {answer.error}")
        return tuple(self._keys[client] for client in clients)

    def without_lost(self, round: int, plan: SumPlan, outcomes: RoundOutcomes, needed: int) -> list[int]:
        """Return the clients of a new attempt if some of a plan are lost, and enough are left; else none.

        The lost ones are on disk before anything of the attempt is forgotten.
        """
        lost = [client for client in plan.clients if client not in outcomes.done]
        if not lost or len(outcomes.done) < needed:
            return []
        self.history.lost |= dict.fromkeys(lost, round)
        clients = {str(client): of_round for client, of_round in self.history.lost.items()}
        write_sealed(self.facts.run.path / LOST, {"clients": clients})
        left = sorted(outcomes.done)
        for work in outcomes.done.values():
            forget_work(self.facts.run, round, work)
        outcomes.done.clear()
        return left
