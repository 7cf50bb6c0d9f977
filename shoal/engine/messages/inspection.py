"""Inspection of clients' answers: by the worker as far as it can judge them, and before the server aggregates.

A worker refuses what no method could mean: numbers that are not finite, names and metrics that no table could hold.
The server knows what the method declares, compares each answer with that, and the answers of a round with each other:
a client that changes the model a hundred times more than the others has not done honest work on samples like theirs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import FailureCause
from shoal.core.threads import in_order
from shoal.data.partition.table import Partition
from shoal.engine.messages.client_numbers import counts_fault, metrics_fault
from shoal.engine.messages.fixed_point import form_of_part
from shoal.engine.messages.wire import Failure, SumPlan
from shoal.engine.settings.hardware import keep_freed_memory
from shoal.engine.store.codec import MIN_THREAD_BYTES, load_message, load_tensors
from shoal.engine.store.finished_work import FinishedWork, drop_refused, load_update
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.store.run_facts import RunFacts
from shoal.engine.store.run_folder import RunError
from shoal.methods.contract.base import ClientError, Method, Server, Update
from shoal.methods.contract.declared import MessageForm, bounded, change_norm, fault, start_norm, unfit
from shoal.methods.contract.message import Message, Tensors

TO_SERVER = "message to the server"
MIN_COMPARED_ANSWERS = 3
"""With fewer answers in a round their median does not show what is usual."""
MAX_UPDATE_RATIO = 100.0
"""Largest accepted change of the model, as a multiple of the round's median change."""
MAX_ABS_VALUE = 1e12
"""Largest absolute value in a client's tensors for which the method declares no bound of its own."""
MAX_READ_AHEAD_BYTES = 1 << 30
"""Most bytes that are read ahead of an aggregation, which bounds the memory of a round with large messages."""
MAX_EARLY_BYTES = 1 << 31
"""Most bytes that are read while clients train."""
MAX_THREADS = 4
MEMORY = "private memory"
MAX_MEMORY_BYTES = 4096e6
"""Most bytes of private memory that a client may keep."""


class MessageRefused(ClientError):
    """A client's message is not what its method declares; nothing of its answer is kept."""

    failure_cause = FailureCause.MESSAGE_REFUSED


def refuse(client: int, round: int, what: str, why: str | None) -> None:
    """Refuse part of a client's answer if there is a reason.

    Raises:
        MessageRefused: names client, round and part, and says why.
    """
    if why is not None:
        raise MessageRefused(f"the {what} of client {client} in round {round} is refused: {why}")


def check_answer(client: int, round: int, update: Update) -> None:
    """Refuse, on the worker, an answer that no method could mean.

    Args:
        client: its id.
        round: the round.
        update: the whole answer.

    Raises:
        MessageRefused: names the client, and what is wrong with its answer.
    """
    refuse(client, round, "list of metrics", metrics_fault(update.metrics))
    refuse(client, round, TO_SERVER, unfit(update.message))
    for peer, message in update.peers.items():
        refuse(client, round, f"message to client {peer}", unfit(message))
    if update.memory is not None:
        refuse(client, round, MEMORY, too_large(update.memory))
        refuse(client, round, MEMORY, unfit(Message(update.memory), MAX_ABS_VALUE))


def too_large(memory: Tensors) -> str | None:
    """Return why a client's memory is too large; None if it is not. Values that are not tensors do not count."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in memory.values() if isinstance(tensor, Tensor))
    if size <= MAX_MEMORY_BYTES:
        return None
    return f"it has {size / 1e6:,.1f} MB, expected at most {MAX_MEMORY_BYTES / 1e6:,.1f} MB"


def foreign_samples(client: int, message: Message, form: MessageForm, partition: Partition) -> str | None:
    """Return which samples of a message its sender does not hold; None if there are none.

    Args:
        client: the sender.
        message: with the declared form.
        form: declared form of the message.
        partition: the samples of each client.
    """
    rows = partition.rows(client)
    training = ~partition.validation[rows]
    own = partition.sample[rows][training]
    for name, index in message.samples.items():
        sent = index.cpu().numpy()
        foreign = sent[~np.isin(sent, own)]
        if len(foreign):
            return f"samples {name!r} name sample {foreign[0]}, which client {client} does not hold"
    return None


@dataclass(frozen=True)
class Change:
    """The change of the model in a client's message.

    Args:
        norm: see `shoal.methods.contract.declared.change_norm`.
        samples: number of the client's training samples.
        start: returns the norm of the model from which the client began.
    """

    norm: float
    samples: int
    start: Callable[[], float]


def too_large_changes(changes: Mapping[int, Change]) -> dict[int, str]:
    """Return the clients that change the model far more than the others do, and why each is refused.

    A change may be `MAX_UPDATE_RATIO` times the median of the round; for a client with more samples than the median
    client the bound grows in proportion, since it takes more steps. A change shorter than the norm of the model from
    which the client began is never too large: if most clients have converged, one that still learns may be honest.

    Args:
        changes: of the clients of a round.
    """
    if len(changes) < MIN_COMPARED_ANSWERS:
        return {}
    median = statistics.median(change.norm for change in changes.values())
    samples = statistics.median(change.samples for change in changes.values())
    reasons = {}
    for client, change in changes.items():
        bound = MAX_UPDATE_RATIO * median * max(1.0, change.samples / max(1.0, samples))
        if median and change.norm > bound and change.norm > change.start():
            reasons[client] = (
                f"it changes the model by {change.norm:.3g}, and the median of the round is {median:.3g}: expected at "
                f"most {bound:.3g}"
            )
    return reasons


@dataclass(frozen=True)
class InspectedAnswer:
    """A client's answer after inspection.

    Args:
        update: the answer; None if it is refused.
        refused: why it is refused.
        change: how much it changes the model; None: that was not measured, or was measured before.
    """

    update: Update | None = None
    refused: Failure | None = None
    change: Change | None = None


@dataclass
class RoundInspection:
    """The answers of a round, inspected on their way into the aggregation: each is read once, a few at a time.

    Threads read and inspect large answers ahead of the aggregation, while other clients train. Only the median of all
    changes shows which of them are too large. If an answer is refused for that, the aggregation must be repeated
    without it.

    Args:
        facts: of the run.
        server: the state before the round.
        plan: of the sum of messages; None: each is inspected as it is.

    Attributes:
        done: the clients' work, in order of their ids; `settle` removes the refused.
        refused: the failures of the clients whose answers are refused.
    """

    facts: RunFacts
    server: Server
    plan: SumPlan | None = None
    done: list[FinishedWork] = field(default_factory=list)
    refused: dict[int, Failure] = field(default_factory=dict)
    _inspected: set[int] = field(default_factory=set)
    _changes: dict[int, Change] = field(default_factory=dict)
    _compared: bool = False
    _early: dict[int, tuple[FinishedWork, Future[InspectedAnswer]]] = field(default_factory=dict)
    _threads: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, 1, "early-inspection"))

    def begin(self, work: FinishedWork) -> None:
        """Read and inspect an answer while other clients train, if it is large and fits into memory beside others."""
        waiting = sum(earlier.bytes_up for earlier, _ in self._early.values())
        if work.bytes_up >= MIN_THREAD_BYTES and waiting + work.bytes_up <= MAX_EARLY_BYTES:
            keep_freed_memory()  # for the next message
            self._early[work.client] = work, self._threads.submit(self.inspect, work)

    def inspected(self, work: FinishedWork) -> InspectedAnswer:
        """Return an answer after inspection, which may have begun; errors as of `inspect`."""
        if work.client in self._early:
            begun, inspected = self._early.pop(work.client)
            # Else the client was trained again, or no thread has begun.
            if begun == work and not inspected.cancel():
                return inspected.result()
        return self.inspect(work)

    def updates(self) -> Iterator[Update]:
        """Yield the updates that are not refused when they are read; `settle` may still refuse some.

        Raises:
            StoreError: a stored answer is missing or damaged.
        """
        left = [work for work in self.done if work.client not in self.refused]
        for work, inspected in zip(left, in_order(self.inspected, left, self.threads), strict=True):
            self._inspected.add(work.client)
            if inspected.change is not None:
                self._changes[work.client] = inspected.change
            if inspected.refused is not None:
                self.refused[work.client] = inspected.refused
            elif inspected.update is not None:
                yield inspected.update

    def refuse(self, reasons: Mapping[int, str]) -> None:
        """Refuse answers that do not fit the others of the round, by client and reason."""
        for client, why in reasons.items():
            sentence = f"the {TO_SERVER} of client {client} in round {self.round} is refused: {why}"
            self.refused[client] = Failure(sentence, FailureCause.MESSAGE_REFUSED)

    def settle(self) -> bool:
        """Refuse changes that are too large for the round, once every answer is read.

        Returns:
            Whether the updates from `updates` are exactly the accepted ones.
        """
        if any(work.client not in self._inspected for work in self.done):
            for _ in self.updates():
                pass  # an aggregation that ended early has not read them all
        before = len(self.refused)
        if not self._compared:
            self._compared = True
            self.refuse(too_large_changes(self._changes))
        self.done = drop_refused(self.facts.run, self.server.round + 1, self.done, self.refused)
        return len(self.refused) == before

    @property
    def threads(self) -> int:
        """Threads that read messages ahead: one for small ones, and so few that large ones fit into memory."""
        largest = max((work.bytes_up for work in self.done), default=0)
        if largest < MIN_THREAD_BYTES:
            return 1
        return max(1, min(MAX_THREADS, MAX_READ_AHEAD_BYTES // largest))

    @property
    def round(self) -> int:
        """The round."""
        return self.server.round + 1

    def inspect(self, work: FinishedWork) -> InspectedAnswer:
        """Read and inspect a client's answer; threads may call this, and no file is changed.

        Args:
            work: the client's work.

        Raises:
            StoreError: a file of it is missing or damaged.
        """
        client = work.client
        samples = self.facts.federation.sizes[client]
        try:
            refuse(client, self.round, "list of metrics", metrics_fault(work.metrics))
            refuse(client, self.round, "list of counts", counts_fault(work, samples))
            update = load_update(self.facts.run, self.round, work)
            form = self.facts.method.declared(self.server, client, samples)
            if self.plan is not None:
                form = form_of_part(form, self.plan, mean=self.facts.method.averages)
            if self.facts.settings.privacy.clip is not None:
                # Noise may move a value out of its bounds; moving it back reveals nothing more.
                update = replace(update, message=bounded(update.message, form))
            refuse(client, self.round, TO_SERVER, fault(update.message, form, MAX_ABS_VALUE))
            for peer in work.peers:
                refuse(client, self.round, f"message to client {peer}", self.peer_fault(work, peer))
            self.check_memory(work, samples, update)
        except MessageRefused as error:
            return InspectedAnswer(refused=Failure(str(error), error.failure_cause))
        start = partial(start_norm, tuple(update.message.tensors), form)
        return InspectedAnswer(update, change=Change(change_norm(update.message, form), samples, start))

    def peer_fault(self, work: FinishedWork, peer: int) -> str | None:
        """Return the fault of a client's message to another; None if there is none."""
        message: Message = load_message(*self._file(work, work.peer(peer)))
        form = self.facts.method.declared_to_peer(self.server, work.client, peer)
        if form is None:
            return "its method declares no such message"
        return fault(message, form, MAX_ABS_VALUE) or foreign_samples(work.client, message, form, self.facts.partition)

    def check_memory(self, work: FinishedWork, samples: int, update: Update) -> None:
        """Refuse a memory that an evaluation could not read, or that contradicts the message.

        Raises:
            MessageRefused: see `refuse`. StoreError: its file is missing or damaged.
        """
        form = self.facts.method.declared_memory(self.server, work.client, samples)
        if form is None or work.memory is None or self.facts.sites:
            return  # at a site the memory stays there, and only its own evaluation reads it
        memory, _ = load_tensors(*self._file(work, work.memory))
        refuse(work.client, self.round, MEMORY, fault(Message(memory), form, MAX_ABS_VALUE))
        refuse(work.client, self.round, "answer", self.facts.method.mismatch(replace(update, memory=memory)))

    def _file(self, work: FinishedWork, name: str) -> tuple[Path, str, str]:
        """Return the path of a file of a client's work, the device on which to read it, and its digest."""
        return RoundPaths(self.facts.run.path, self.round).work / name, "cpu", work.sha256[name]


def check_state(method: Method, before: Server, after: Server) -> None:
    """Refuse a server state from which no further round could begin.

    Raises:
        RunError: names the tensor, its values and what was expected.
    """
    refusal = f"the server state that method {method.name!r} made in round {after.round} cannot be kept"
    for name, tensor in after.tensors.items():
        if tensor.is_floating_point() and tensor.numel():
            low, high = torch.aminmax(tensor)  # NaN goes through both
            # The server's own values may be infinite: the best loss of a flow before its first evaluation.
            if math.isnan(low) or (name in after.model and math.inf in (-low, high)):
                raise RunError(f"{refusal}: {name!r} holds NaN or infinite values; lower local.lr or check the data")
    if method.averages:
        expected = {name: (tensor.shape, tensor.dtype) for name, tensor in before.model.items()}
        forms = {name: (tensor.shape, tensor.dtype) for name, tensor in after.model.items()}
        if forms != expected:
            name = min(name for name in forms.keys() | expected.keys() if forms.get(name) != expected.get(name))
            raise RunError(
                f"{refusal}: {name!r} is {forms.get(name)}, expected {expected.get(name)}, as in the round before"
            )
