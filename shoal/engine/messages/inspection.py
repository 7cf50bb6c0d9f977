"""Clients' answers against what their method declares: before a worker keeps them, and before the server aggregates.

A worker refuses what is wrong with an answer by itself. The server does so once more, for a file may have changed on
its way, and compares the answers of a round with each other: one that changes the model a hundred times more than the
others do cannot be honest work on samples like theirs.
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
from shoal.engine.messages.prefetcher import MessagePrefetcher
from shoal.engine.messages.wire import Failed
from shoal.engine.store.codec import StoreError, load_message
from shoal.engine.store.finished_work import FinishedWork, forget_work, load_update
from shoal.engine.store.manifest import odd_counts, odd_metrics
from shoal.engine.store.opened_run import OpenedRun
from shoal.engine.store.read_ahead import read_ahead
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.store.run_folder import RunError, RunFolder
from shoal.methods.contract.base import ClientError, Method, Server, Update
from shoal.methods.contract.declared import MessageForm, change_norm, fault, start_norm
from shoal.methods.contract.message import Message, Tensors

TO_SERVER = "message to the server"
MIN_COMPARED_ANSWERS = 3
"""With fewer answers in a round their median does not show what is usual."""
MAX_ABS_VALUE = 1e12
"""Largest absolute value in a client's tensors for which the method declares no bound of its own."""
MAX_MEMORY_BYTES = 4096e6
"""Most bytes of private memory that a client may keep."""


class MessageRefused(ClientError):
    """A client's message is not what its method declares; nothing of its answer is kept."""

    failure_cause = FailureCause.MESSAGE_REFUSED


@dataclass(frozen=True)
class Inspection:
    """What the clients of one round may send and keep.

    Args:
        method: of the run.
        server: the state that the work begins from.
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
        """Refuse an answer that is not what the method declares; the form that its message to the server has.

        Args:
            client: its id.
            samples: how many training samples it has.
            update: the whole answer.

        Raises:
            MessageRefused: names the client, what of its answer is wrong, and what was expected.
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
        """Refuse metrics that are no numbers, or so many or so named that no table could hold them."""
        self._refuse(client, "list of metrics", odd_metrics(metrics))

    def check_work(self, done: FinishedWork, samples: int) -> None:
        """Refuse finished work whose metrics or counts no table could hold, or whose number of samples is another.

        Args:
            done: what the client did.
            samples: how many training samples it has.
        """
        self.check_metrics(done.client, done.metrics)
        self._refuse(done.client, "list of counts", odd_counts(done, samples))

    def check_message(self, client: int, samples: int, message: Message) -> MessageForm | None:
        """Refuse a message to the server as `check` does; the form that it has."""
        form = self.method.declared(self.server, client, samples)
        self._refuse(client, TO_SERVER, fault(message, form, MAX_ABS_VALUE))
        return form

    def check_peer(self, client: int, peer: int, message: Message) -> None:
        """Refuse a message to another client as `check` does."""
        form = self.method.declared_to_peer(self.server, client, peer)
        why = "its method declares no such message" if form is None else fault(message, form, MAX_ABS_VALUE)
        if form is not None and why is None and self.partition is not None:
            why = not_held(client, message, form, self.partition)
        self._refuse(client, f"message to client {peer}", why)

    def answer(self, run: RunFolder, done: FinishedWork, samples: int) -> Inspected:
        """Read what a client sent, with the messages to peers beside it, and inspect it; changes nothing.

        Args:
            run: the run's folder.
            done: what the client did.
            samples: how many training samples it has.
        """
        client, work = done.client, RoundPaths(run.path, self.round).work
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
        """That something of a client is refused, and why."""
        return f"the {what} of client {client} in round {self.round} is refused: {why}"


def too_large(memory: Tensors) -> str | None:
    """Return why a client's memory is too large; None where it is not. Values that are no tensors do not count."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in memory.values() if isinstance(tensor, Tensor))
    if size <= MAX_MEMORY_BYTES:
        return None
    return f"it has {size / 1e6:,.1f} MB, expected at most {MAX_MEMORY_BYTES / 1e6:,.1f} MB"


def not_held(client: int, message: Message, form: MessageForm, partition: Partition) -> str | None:
    """Return which of the samples of a message its sender does not hold, or holds otherwise; None: it holds all.

    Args:
        client: the sender.
        message: without fault in its form.
        form: that it has.
        partition: who holds which samples, and with which transformation planted.
    """
    rows = partition.rows(client)
    training = ~partition.validation[rows]
    own = partition.sample[rows][training]
    for name, index in message.samples.items():
        sent = index.cpu().numpy()
        strange = sent[~np.isin(sent, own)]
        if len(strange):
            return f"samples {name!r} name sample {strange[0]}, which client {client} does not hold"
        if not form.planted:
            continue
        said = message.tensors.get(form.planted)
        told = np.zeros(len(sent), np.int64) if said is None else said.cpu().numpy().astype(np.int64)
        held = partition.transformation[rows][training][np.searchsorted(own, sent)]
        if len(told) != len(sent) or (told != held).any():
            return f"tensor {form.planted!r} does not hold the transformations of the samples {name!r}"
    return None


@dataclass(frozen=True)
class Change:
    """How much a client's message changes the model.

    Args:
        norm: see `shoal.methods.contract.declared.change_norm`.
        samples: how many training samples the client has.
        start: the norm of what the client began from.
    """

    norm: float
    samples: int
    start: Callable[[], float]


def too_long(changes: Mapping[int, Change], longest: float) -> dict[int, str]:
    """The clients whose change is out of all proportion to those of the others, and why.

    A change may be `longest` times the median of the round, and as many times more as the client has samples beyond
    the median client's, since whoever has more samples takes more steps. Up to the norm of the model that it began from
    it is never too long: where most clients have come to rest, one that still learns is no liar.

    Args:
        changes: of the clients of a round.
        max_update_ratio: multiple of the median; 0: nothing is too long.
    """
    if not longest or len(changes) < MIN_COMPARED_ANSWERS:
        return {}
    usual = statistics.median(change.norm for change in changes.values())
    samples = statistics.median(change.samples for change in changes.values())
    found = {}
    for client, change in changes.items():
        bound = longest * usual * max(1.0, change.samples / max(1.0, samples))
        if usual and change.norm > bound and change.norm > change.start():
            found[client] = (
                f"it changes the model by {change.norm:.3g}, and the median of the round is {usual:.3g}: expected at "
                f"most {bound:.3g} (participation.max_update_ratio)"
            )
    return found


@dataclass(frozen=True)
class Inspected:
    """An answer of a client as it was read.

    Args:
        update: what it sent; None where it is refused.
        refused: why.
        change: how much it changes the model, where that is measured and was not before.
    """

    update: Update | None = None
    refused: Failed | None = None
    change: Change | None = None


@dataclass
class RoundInspection:
    """The answers of a round, each inspected on its way into the aggregation: read once, a few in memory at a time.

    Large ones are read and inspected by threads, ahead of the aggregation.

    How much is too much shows only when all have been seen. Where an answer turns out to be refused for that, the
    aggregation has to be done once more without it.

    Args:
        run: the run's folder.
        opened: the run.
        server: the state before the round.
        done: what the clients did, in order of their ids; `settle` leaves those whose answers are taken.
        prefetcher: has read and inspected some of the answers already.

    Attributes:
        refused: whose answers are not taken, and why. The kind of a failure tells `MessageRefused`, the fault of the
            client, from `StoreError`: the file is not the one that its work ended with, which is not.
    """

    run: RunFolder
    opened: OpenedRun
    server: Server
    done: list[FinishedWork]
    prefetcher: MessagePrefetcher[Inspected]
    refused: dict[int, Failed] = field(default_factory=dict)
    _inspection: Inspection = field(init=False)
    _sizes: Sequence[int] = field(init=False)
    _seen: set[int] = field(default_factory=set)
    _changes: dict[int, Change] = field(default_factory=dict)
    _measured: bool = False

    def __post_init__(self) -> None:
        self._inspection = Inspection.from_opened(self.opened, self.server)
        self._sizes = self.opened.federation.sizes

    def updates(self) -> Iterator[Update]:
        """The updates that are taken, as far as that is known when each is read."""
        for found in self._inspected([each for each in self.done if each.client not in self.refused]):
            if found is not None:
                yield found

    def settle(self) -> bool:
        """Refuse what is out of all proportion, once every answer was seen.

        Returns:
            Whether those that `updates` gave are just those whose answers are taken.
        """
        for _ in self._inspected([e for e in self.done if e.client not in self.refused | dict.fromkeys(self._seen)]):
            pass  # an aggregation that ended early has not asked for them
        before = len(self.refused)
        if not self._measured:
            self._measured = True
            for client, why in too_long(self._changes, self.opened.settings.participation.max_update_ratio).items():
                sentence = self._inspection.sentence(client, TO_SERVER, why)
                self.refused[client] = Failed(sentence, FailureCause.MESSAGE_REFUSED)
        for each in self.done:
            if each.client in self.refused:
                forget_work(self.run, self.server.round + 1, each)
        self.done = [each for each in self.done if each.client not in self.refused]
        return len(self.refused) == before

    @property
    def size(self) -> int:
        """Bytes of the largest message to the server."""
        return max((each.bytes_up for each in self.done), default=0)

    def _inspected(self, left: Sequence[FinishedWork]) -> Iterator[Update | None]:
        """The updates of some clients, in order; None: it is refused."""
        for each, inspect in zip(left, read_ahead(self.inspect, left, self.size), strict=True):
            found = inspect()
            if found.refused is not None:
                self.refused[each.client] = found.refused
            else:
                self._seen.add(each.client)
            if found.change is not None:
                self._changes[each.client] = found.change
            yield found.update

    def inspect(self, done: FinishedWork) -> Inspected:
        """Read an answer and inspect it, unless that was done early; changes nothing, so threads may."""
        found = self.prefetcher.take(self.server.round + 1, done)
        if done.client in self._seen:  # by an aggregation before, with the same digest
            try:
                return Inspected(load_update(self.run, self.server.round + 1, done))
            except StoreError as error:
                return Inspected(refused=Failed(str(error), error.failure_cause))
        return found or self._inspection.answer(self.run, done, self._sizes[done.client])


def check_state(method: Method, before: Server, after: Server) -> None:
    """Refuse a server state that no further round could begin from.

    Raises:
        RunError: names the tensor, what it holds and what was expected.
    """
    said = f"the server state that method {method.name!r} made in round {after.round} cannot be kept"
    for name, tensor in after.tensors.items():
        if tensor.is_floating_point() and tensor.numel():
            low, high = torch.aminmax(tensor)  # NaN goes through both
            finite = math.isfinite(low) and math.isfinite(high)
            # What the server keeps for itself may be infinite: the best loss of a flow that nobody has judged yet.
            if math.isnan(low) or (name in after.model and not finite):
                raise RunError(f"{said}: {name!r} holds NaN or infinite values; lower local.lr or check the data")
    if method.averages:
        forms = ({name: (t.shape, t.dtype) for name, t in state.model.items()} for state in (before, after))
        was, now = forms
        if was != now:
            odd = sorted(name for name in was.keys() | now.keys() if was.get(name) != now.get(name))
            raise RunError(f"{said}: {odd[0]!r} is {now.get(odd[0])}, expected {was.get(odd[0])}, as it was before")
