"""Rounds that wait for a number of answers and not for all clients (`participation.buffer`): FedBuff.

An answer may have begun from an older state than the newest. It counts as if it had begun from the newest: the change
of each answer, weighed by its age, is added to that state.

Sources: Nguyen et al. 2022, algorithm 1; the weight is that of Xie, Koyejo and Gupta 2019, "Asynchronous Federated
Optimization", with a = 1/2 in FedBuff.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from shoal.engine.rounds.answer_schedule import AnswerSchedule
from shoal.engine.store.checkpoint import load_state
from shoal.engine.store.run_facts import RunFacts
from shoal.engine.store.run_folder import RunError
from shoal.methods.contract.base import Server, Update
from shoal.methods.contract.message import Message, Tensors


class BufferedRounds:
    """From which state each client of a round begins: without `participation.buffer` always from the newest.

    Args:
        facts: of the run.

    Attributes:
        schedule: the answers of each round; None if a round waits for all its clients.

    Raises:
        RunError: fewer clients train at once than answers make a round.
    """

    def __init__(self, facts: RunFacts) -> None:
        self._facts = facts
        self.schedule: AnswerSchedule | None = None
        participation = facts.settings.participation
        clients = facts.federation.clients
        if participation.buffer is None:
            return
        at_work = max(1, round(participation.fraction * clients))
        if participation.buffer > at_work:
            raise RunError(
                f"participation.buffer is {participation.buffer}, and only {at_work} of {clients} clients train at the "
                "same time (participation.fraction): lower participation.buffer or raise participation.fraction"
            )
        sizes = facts.federation.sizes
        self.schedule = AnswerSchedule(sizes, facts.settings.seed, at_work, participation.buffer, participation.dropout)

    @property
    def oldest(self) -> int:
        """The age of the oldest state from which a client begins, in rounds."""
        if self.schedule is None:
            return 0
        return self.schedule.oldest(self._facts.settings.rounds)

    def begun_from(self, round: int, client: int) -> int:
        """Return the round of the state from which a client's work in a round begins."""
        newest = round - 1
        if self.schedule is None:
            return newest
        # A client that replaces a quarantined one begins now.
        return self.schedule.round(round).begun_from.get(client, newest)

    def state(self, newest: Server, client: int) -> Server:
        """Return the state from which a client begins in the next round; older ones come from their checkpoints.

        Raises:
            StoreError: a checkpoint is missing or damaged.
        """
        round = self.begun_from(newest.round + 1, client)
        if round == newest.round:
            return newest
        return load_state(self._facts.run, round)

    def rebased(self, newest: Server, updates: Iterable[Update]) -> Iterator[Update]:
        """Yield the updates of the next round as if all had begun from the newest state.

        The mean of the result is the newest state plus the mean of (1 + t)^-a times the change of each answer, which
        began t rounds earlier.
        """
        method = self._facts.method
        for update in updates:
            begun_from = self.state(newest, update.client)
            age = newest.round - begun_from.round
            if not age:
                yield update
                continue
            sent = method.broadcast(begun_from, update.client).tensors
            now = method.broadcast(newest, update.client).tensors
            weight = (1.0 + age) ** -self._facts.settings.participation.staleness
            yield replace(update, message=rebase(update.message, sent, now, weight))

    def simulated_time(self, round: int, clients: Collection[int]) -> dict[str, float]:
        """Return the simulated time after a round and the mean age of its answers; empty if it waits for all clients.

        Args:
            round: the round.
            clients: those that answered.
        """
        if self.schedule is None:
            return {}
        ages = [round - 1 - self.begun_from(round, client) for client in clients]
        return {"simulated_time": self.schedule.round(round).time, "staleness": statistics.fmean(ages)}


def rebase(message: Message, sent: Tensors, newest: Tensors, weight: float) -> Message:
    """Return a message whose tensors are the newest ones plus `weight` times the change of those that were sent.

    Whole numbers (BatchNorm's counts of batches) and tensors that were not sent stay unchanged.
    """
    tensors = {}
    for name, tensor in message.tensors.items():
        tensors[name] = tensor
        if name in sent and tensor.is_floating_point():
            changed = newest[name].double() + weight * (tensor.double() - sent[name].double())
            if name.endswith("running_var"):
                changed = changed.clamp_min(0)
            tensors[name] = changed.to(tensor.dtype)
    return replace(message, tensors=tensors)
