"""Inspection of clients' answers against what their method declares: on the worker, and before the server aggregates.

A worker refuses an answer that is wrong by itself. The server inspects it again, since a file may have changed on its
way, and compares the answers of a round: a client that changes the model a hundred times more than the others has not
done honest work on samples like theirs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import FailureCause
from shoal.data.partition.table import Partition
from shoal.engine.messages.client_numbers import counts_fault, metrics_fault
from shoal.engine.messages.prefetcher import MessagePrefetcher
from shoal.engine.messages.read_ahead import read_ahead
from shoal.engine.messages.wire import Failed
from shoal.engine.store.codec import StoreError, load_message
from shoal.engine.store.finished_work import FinishedWork, drop_refused, load_update
from shoal.engine.store.opened_run import OpenedRun
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.store.run_folder import RunError, RunFolder
from shoal.methods.contract.base import ClientError, Method, Server, Update
from shoal.methods.contract.declared import MessageForm, change_norm, fault, start_norm
from shoal.methods.contract.message import Message, Tensors

TO_SERVER = "message to the server"
MIN_COMPARED_ANSWERS = 3
"""With fewer answers in a round their median does not show what is usual."""
MAX_UPDATE_RATIO = 100.0
"""Largest accepted change of the model, as a multiple of the round's median change."""
MAX_ABS_VALUE = 1e12
"""Largest absolute value in a client's tensors for which the method declares no bound of its own."""
MAX_MEMORY_BYTES = 4096e6
"""Most bytes of private memory that a client may keep."""


class MessageRefused(ClientError):
    """A client's message is not what its method declares; nothing of its answer is kept."""

    failure_cause = FailureCause.MESSAGE_REFUSED


@dataclass(frozen=True)
class Inspection:
    """The rules for what the clients of one round may send and keep.

    Args:
        method: of the run.
        server: the state from which the work begins.
        round: the round.
        partition: says which samples each client holds; None: this is not checked.
    """

    method: Method
    server: Server
    round: int
    partition: Partition | None = None

    @classmethod
    def from_opened(cls, opened: OpenedRun, server: Server, round: int | None = None) -> Inspection:
        """Return the inspection of a round whose work begins from a state; by default the round that follows it."""
        if round is None:
            round = server.round + 1
        return cls(opened.method, server, round, opened.partition)

    def check(self, client: int, samples: int, update: Update) -> MessageForm | None:
        """Refuse an answer that is not what the method declares; return the declared form of its message to the server.

        Args:
            client: its id.
            samples: number of its training samples.
            update: the whole answer.

        Raises:
            MessageRefused: names the client, what is wrong with its answer, and what was expected.
        """
        declared = self.check_message(client, samples, update.message)
        self.check_metrics(client, update.metrics)
        for peer, message in update.peers.items():
            self.check_peer(client, peer, message)
        if update.memory is not None:
            self._refuse(client, "private memory", too_large(update.memory))
            form = self.method.declared_memory(self.server, client, samples)
            self._refuse(client, "private memory", fault(Message(update.memory), form, MAX_ABS_VALUE))
        self._refuse(client, "answer", self.method.mismatch(update))
        return declared

    def check_metrics(self, client: int, metrics: Mapping[str, float]) -> None:
        """Refuse metrics that are not numbers, or whose number or names do not fit into tables."""
        self._refuse(client, "list of metrics", metrics_fault(metrics))

    def check_work(self, done: FinishedWork, samples: int) -> None:
        """Refuse finished work whose metrics or counts do not fit into tables, or with a wrong number of samples.

        Args:
            done: the client's work.
            samples: number of its training samples.
        """
        self.check_metrics(done.client, done.metrics)
        self._refuse(done.client, "list of counts", counts_fault(done, samples))

    def check_message(self, client: int, samples: int, message: Message) -> MessageForm | None:
        """Refuse a wrong message to the server, as `check` does; return its declared form."""
        form = self.method.declared(self.server, client, samples)
        self._refuse(client, TO_SERVER, fault(message, form, MAX_ABS_VALUE))
        return form

    def check_peer(self, client: int, peer: int, message: Message) -> None:
        """Refuse a wrong message to another client, as `check` does."""
        form = self.method.declared_to_peer(self.server, client, peer)
        why = "its method declares no such message" if form is None else fault(message, form, MAX_ABS_VALUE)
        if form is not None and why is None and self.partition is not None:
            why = foreign_samples(client, message, form, self.partition)
        self._refuse(client, f"message to client {peer}", why)

    def answer(self, run: RunFolder, done: FinishedWork, samples: int) -> Inspected:
        """Read and inspect a client's message to the server and those to peers; no file is changed.

        Args:
            run: the run's folder.
            done: the client's work.
            samples: number of its training samples.
        """
        client = done.client
        work = RoundPaths(run.path, self.round).work
        try:
            self.check_work(done, samples)
            update = load_update(run, self.round, done)
            form = self.check_message(client, samples, update.message)
            for peer in done.peers:
                message = load_message(work / done.peer(peer), sha256=done.sha256[done.peer(peer)])
                self.check_peer(client, peer, message)
        except (MessageRefused, StoreError) as error:
            return Inspected(refused=Failed(str(error), error.failure_cause))
        if form is None:
            return Inspected(update)
        start = partial(start_norm, tuple(update.message.tensors), form)
        return Inspected(update, change=Change(change_norm(update.message, form), samples, start))

    def _refuse(self, client: int, what: str, why: str | None) -> None:
        if why is not None:
            raise MessageRefused(self.sentence(client, what, why))

    def sentence(self, client: int, what: str, why: str) -> str:
        """Return the sentence that part of a client's answer is refused, and why."""
        return f"the {what} of client {client} in round {self.round} is refused: {why}"


def too_large(memory: Tensors) -> str | None:
    """Return why a client's memory is too large; None if it is not. Values that are not tensors do not count."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in memory.values() if isinstance(tensor, Tensor))
    if size <= MAX_MEMORY_BYTES:
        return None
    return f"it has {size / 1e6:,.1f} MB, expected at most {MAX_MEMORY_BYTES / 1e6:,.1f} MB"


def foreign_samples(client: int, message: Message, form: MessageForm, partition: Partition) -> str | None:
    """Return which samples of a message its sender does not hold, or wrongly describes; None if there are none.

    Args:
        client: the sender.
        message: with the declared form.
        form: declared form of the message.
        partition: the samples of each client, and the transformations planted on them.
    """
    rows = partition.rows(client)
    training = ~partition.validation[rows]
    own = partition.sample[rows][training]
    for name, index in message.samples.items():
        sent = index.cpu().numpy()
        foreign = sent[~np.isin(sent, own)]
        if len(foreign):
            return f"samples {name!r} name sample {foreign[0]}, which client {client} does not hold"
        if not form.planted:
            continue
        tensor = message.tensors.get(form.planted)
        declared = np.zeros(len(sent), np.int64)
        if tensor is not None:
            declared = tensor.cpu().numpy().astype(np.int64)
        planted = partition.transformation[rows][training][np.searchsorted(own, sent)]
        if len(declared) != len(sent) or (declared != planted).any():
            return f"tensor {form.planted!r} does not hold the transformations of the samples {name!r}"
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
    found = {}
    for client, change in changes.items():
        bound = MAX_UPDATE_RATIO * median * max(1.0, change.samples / max(1.0, samples))
        if median and change.norm > bound and change.norm > change.start():
            found[client] = (
                f"it changes the model by {change.norm:.3g}, and the median of the round is {median:.3g}: expected at "
                f"most {bound:.3g}"
            )
    return found


@dataclass(frozen=True)
class Inspected:
    """A client's answer after inspection.

    Args:
        update: the answer; None if it is refused.
        refused: why it is refused.
        change: how much it changes the model; None: that was not measured, or was measured before.
    """

    update: Update | None = None
    refused: Failed | None = None
    change: Change | None = None


@dataclass
class RoundInspection:
    """The answers of a round, inspected on their way into the aggregation: each is read once, a few at a time.

    Threads read and inspect large answers ahead of the aggregation. Only the median of all changes shows which of them
    are too large. If an answer is refused for that, the aggregation must be repeated without it.

    Args:
        run: the run's folder.
        opened: the run.
        server: the state before the round.
        done: the clients' work, in order of their ids; `settle` removes the refused.
        prefetcher: has read and inspected some of the answers already.

    Attributes:
        refused: failures of the clients whose answers are refused. A `MESSAGE_REFUSED` is the fault of the client; a
            file that is damaged is not.
    """

    run: RunFolder
    opened: OpenedRun
    server: Server
    done: list[FinishedWork]
    prefetcher: MessagePrefetcher[Inspected]
    refused: dict[int, Failed] = field(default_factory=dict)
    _inspection: Inspection = field(init=False)
    _sizes: Sequence[int] = field(init=False)
    _read: set[int] = field(default_factory=set)
    _changes: dict[int, Change] = field(default_factory=dict)
    _measured: bool = False

    def __post_init__(self) -> None:
        self._inspection = Inspection.from_opened(self.opened, self.server)
        self._sizes = self.opened.federation.sizes

    def updates(self) -> Iterator[Update]:
        """Yield the updates that are not refused when they are read; `settle` may still refuse some."""
        for found in self._inspected([each for each in self.done if each.client not in self.refused]):
            if found is not None:
                yield found

    def settle(self) -> bool:
        """Refuse changes that are too large for the round, once every answer is read.

        Returns:
            Whether the updates from `updates` are exactly the accepted ones.
        """
        unread = [each for each in self.done if each.client not in self.refused and each.client not in self._read]
        for _ in self._inspected(unread):
            pass  # an aggregation that ended early has not read them
        before = len(self.refused)
        if not self._measured:
            self._measured = True
            for client, why in too_large_changes(self._changes).items():
                sentence = self._inspection.sentence(client, TO_SERVER, why)
                self.refused[client] = Failed(sentence, FailureCause.MESSAGE_REFUSED)
        self.done = drop_refused(self.run, self.server.round + 1, self.done, self.refused)
        return len(self.refused) == before

    @property
    def size(self) -> int:
        """Bytes of the largest message to the server."""
        return max((each.bytes_up for each in self.done), default=0)

    def _inspected(self, left: Sequence[FinishedWork]) -> Iterator[Update | None]:
        """Yield the updates of some clients, in order; None for a refused one."""
        for each, inspect in zip(left, read_ahead(self.inspect, left, self.size), strict=True):
            found = inspect()
            if found.refused is not None:
                self.refused[each.client] = found.refused
            else:
                self._read.add(each.client)
            if found.change is not None:
                self._changes[each.client] = found.change
            yield found.update

    def inspect(self, done: FinishedWork) -> Inspected:
        """Read an answer and inspect it, unless that was done early; threads may call this."""
        found = self.prefetcher.take(self.server.round + 1, done)
        if done.client in self._read:  # by an earlier aggregation, with the same digest
            try:
                return Inspected(load_update(self.run, self.server.round + 1, done))
            except StoreError as error:
                return Inspected(refused=Failed(str(error), error.failure_cause))
        return found or self._inspection.answer(self.run, done, self._sizes[done.client])


def check_state(method: Method, before: Server, after: Server) -> None:
    """Refuse a server state from which no further round could begin.

    Raises:
        RunError: names the tensor, its values and what was expected.
    """
    refusal = f"the server state that method {method.name!r} made in round {after.round} cannot be kept"
    for name, tensor in after.tensors.items():
        if tensor.is_floating_point() and tensor.numel():
            low, high = torch.aminmax(tensor)  # NaN goes through both
            finite = math.isfinite(low) and math.isfinite(high)
            # The server's own values may be infinite: the best loss of a flow before its first evaluation.
            if math.isnan(low) or (name in after.model and not finite):
                raise RunError(f"{refusal}: {name!r} holds NaN or infinite values; lower local.lr or check the data")
    if method.averages:
        expected = {name: (tensor.shape, tensor.dtype) for name, tensor in before.model.items()}
        found = {name: (tensor.shape, tensor.dtype) for name, tensor in after.model.items()}
        if found != expected:
            name = min(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
            raise RunError(
                f"{refusal}: {name!r} is {found.get(name)}, expected {expected.get(name)}, as in the round before"
            )
