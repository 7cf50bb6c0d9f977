"""Local steps of one kind, captured once and replayed for client after client, round after round.

A captured step computes on the tensors that it was captured with. So these are kept: networks, other tensors, an
optimiser, and the generators of the first client of a kind. A client's tensors are copied into them before its steps,
and the results are copied back. Its samples come in stretches: a buffer holds those of several steps, and a counter on
the device points at the next one, so that the host only launches one graph a step.
"""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby

import torch
from torch import Tensor, nn

from shoal.methods.contract.base import Update
from shoal.methods.contract.context import Context, MethodError
from shoal.methods.contract.message import Tensors
from shoal.methods.training.graphs import GraphPool, SideStream, Work, capture
from shoal.methods.training.local_steps import LocalSteps, Preparation, TakenSteps, prepared
from shoal.methods.training.model_stack import Batch, LocalModel, StepResult
from shoal.methods.training.optimiser_state import reset_optimiser
from shoal.methods.training.shared_launches import SharedLaunches
from shoal.models.network_copies import copy_all, copy_network

WARM_UP_STEPS = 3
"""Steps of a shape taken without capturing before one is captured: the optimiser and libraries set themselves up."""
MIN_STEPS_TO_CAPTURE = 16
"""With `auto`, remaining steps from which on the first client of a shape has one captured."""
STRETCH_STEPS = 64
STRETCH_BYTES = 32 << 20
"""A buffer holds the samples of at most this many steps and bytes, and of one step at least."""
MAX_KINDS = 6
MAX_SHAPES = 8
"""Kinds that are kept, and shapes of each: those used last."""


@dataclass(frozen=True)
class StepRules:
    """A method's rules for its steps.

    Attributes:
        loss: see `GradientMethod.step_loss`.
        after: see `GradientMethod.after_step`.
        optimiser: returns a fresh optimiser over parameters, at the learning rate of the client's round.
        device: the device of the steps.
        required: whether a step that cannot be captured is an error; otherwise it is taken without capturing.
        pool: the memory that all graphs share.
        context: of the run; None: every layer launches its own work (see `SharedLaunches`).
    """

    loss: Callable[[LocalModel, Tensors, Batch, Tensors], StepResult]
    after: Callable[[Tensors, dict[str, Tensors]], None]
    optimiser: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    device: torch.device
    required: bool = False
    pool: GraphPool = field(default_factory=GraphPool)
    context: Context | None = None

    @cached_property
    def groups(self) -> tuple[tuple[str, str], ...]:
        """The optimiser's settings, by name."""
        probe = nn.Parameter(torch.zeros(1, device=self.device))
        settings = [item for group in self.optimiser([probe]).param_groups for item in group.items()]
        return tuple(sorted((name, repr(value)) for name, value in settings if name != "params"))


@dataclass
class Shape:
    """Steps on batches of one shape.

    Attributes:
        buffers: for each tensor of a batch (steps, n, ...), the rows of the coming steps.
        place: int64 (1,), index of the next step in the buffers.
        taken: number of steps taken without capturing.
        clients: number of clients with steps of this shape.
        replay: takes a step; None: none was captured.
    """

    buffers: tuple[Tensor, ...]
    place: Tensor
    taken: int = 0
    clients: int = 0
    replay: Work | None = None

    @property
    def capacity(self) -> int:
        """The number of steps that fit into the buffers."""
        return len(self.buffers[0])


@dataclass
class KeptPreparation:
    """Work before the first step, on tensors of one shape.

    Attributes:
        own: the first client's.
        batch: the tensors on which it computes.
        names: of its metrics.
        row: their values.
        taken: number of times that it was done without capturing.
        replay: does it; None: it was not captured.
    """

    own: Preparation
    batch: Batch
    names: tuple[str, ...] = ()
    row: Tensor = field(default_factory=lambda: torch.empty(0))
    taken: int = 0
    replay: Work | None = None


@dataclass
class KeptSteps:
    """One kind of step, with the tensors on which it computes.

    Args:
        own: the first client's steps.
        rules: the method's.
    """

    own: LocalSteps
    rules: StepRules
    names: tuple[str, ...] = ()
    shapes: OrderedDict[torch.Size, Shape] = field(default_factory=OrderedDict)
    preparations: OrderedDict[Hashable, KeptPreparation] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        first = self.own
        # Tensors that no step computes with are released: a client's memory may be large.
        self.own = own = replace(
            first,
            client=replace(first.client, memory={}, inbox=()),
            network=copy_network(first.network),
            companions={name: copy_network(network) for name, network in first.companions.items()},
            extra={name: tensor.clone() for name, tensor in first.extra.items()},
            batches=(),
            optimiser=None,
            finish=_finished,
        )
        self.model = LocalModel(own.network, own.companions)
        self.parameters: Tensors = dict(own.network.named_parameters())
        self.companions: dict[str, Tensors] = {
            name: dict(network.named_parameters()) for name, network in own.companions.items()
        }
        self.optimiser = self.rules.optimiser(own.network.parameters())
        self.tensors = _tensors(own)
        self.changing = len(self.tensors) - len(own.extra)
        self.launches = SharedLaunches([own.network, *own.companions.values()], self.rules.context)
        self.side = SideStream(self.rules.device)
        self.sums = torch.empty(0)
        self.one = torch.ones((), dtype=torch.float64)

    def take(self, steps: LocalSteps) -> tuple[dict[str, Tensor], int, dict[str, Tensor]]:
        """Take a client's steps.

        Returns:
            The sums of the loss and of the metrics over the steps, scalars, the number of steps, and the metrics of
            the preparation. The optimiser keeps the state of the last step until the next client's steps.

        Raises:
            MethodError: a step cannot be captured, and `rules.required` says that it must be.
        """
        batches = list(steps.batches)
        if not batches:
            return {}, 0, {}
        tensors = _tensors(steps)
        self._begin(steps, tensors)
        once = self._prepare(steps)
        shapes: set[torch.Size] = set()
        for size, group in groupby(batches, key=lambda batch: batch.shape):
            same = list(group)
            shape = self._shape(steps, size, same[0])
            shape.clients += size not in shapes
            shapes.add(size)
            for start in range(0, len(same), shape.capacity):
                self._stretch(steps, shape, same[start : start + shape.capacity], len(same) - start)
        self._end(steps, tensors)
        return dict(zip(self.names, self.sums.unbind(), strict=True)), len(batches), once

    def _begin(self, steps: LocalSteps, tensors: Sequence[Tensor]) -> None:
        copy_all(self.tensors, tensors)
        _set_states(self.own.generators, steps.generators)
        reset_optimiser(self.optimiser, steps.optimiser or {})
        if self.names:
            self.sums.zero_()

    def _end(self, steps: LocalSteps, tensors: Sequence[Tensor]) -> None:
        copy_all(tensors[: self.changing], self.tensors[: self.changing])
        _set_states(steps.generators, self.own.generators)

    def _prepare(self, steps: LocalSteps) -> dict[str, Tensor]:
        """Do what comes before the client's first step, and return its metrics."""
        if steps.preparation is None:
            return {}
        rows = steps.preparation.select()
        states = [generator.get_state() for generator in self.own.generators]
        kept = self._kept_preparation(rows)
        copy_all(kept.batch, rows)
        _set_states(kept.own.generators, steps.preparation.generators)
        if kept.replay is None and kept.taken >= WARM_UP_STEPS:
            kept.replay = self._captured(
                lambda: self._do_preparation(kept), (*self.own.generators, *kept.own.generators)
            )
        if kept.replay is not None:
            kept.replay()
        else:
            self.side.do(lambda: self._do_preparation(kept))
            kept.taken += 1
        # The first step draws what was drawn here.
        for generator, state in zip(self.own.generators, states, strict=True):
            generator.set_state(state)
        return dict(zip(kept.names, kept.row.unbind(), strict=True))

    def _kept_preparation(self, rows: Batch) -> KeptPreparation:
        key = tuple(each.shape for each in rows)
        if key not in self.preparations:
            assert self.own.preparation is not None
            self.preparations[key] = KeptPreparation(self.own.preparation, tuple(map(torch.empty_like, rows)))
        self.preparations.move_to_end(key)
        while len(self.preparations) > MAX_SHAPES:
            self.preparations.popitem(last=False)
        return self.preparations[key]

    def _do_preparation(self, kept: KeptPreparation) -> None:
        found = prepared(kept.own, self.model, kept.batch, self.own.extra, self.launches)
        if not found:
            return
        row = torch.stack([value.detach().float() for value in found.values()])
        if not kept.names:
            kept.names = tuple(found)
            kept.row = torch.empty_like(row)
        kept.row.copy_(row)

    def _shape(self, steps: LocalSteps, size: torch.Size, positions: Tensor) -> Shape:
        if size not in self.shapes:
            row = steps.select(positions)
            bytes_a_step = sum(each.nbytes for each in row)
            capacity = max(1, min(STRETCH_STEPS, STRETCH_BYTES // max(1, bytes_a_step)))
            buffers = tuple(each.new_empty((capacity, *each.shape)) for each in row)
            self.shapes[size] = Shape(buffers, torch.zeros(1, dtype=torch.int64, device=positions.device))
        self.shapes.move_to_end(size)
        while len(self.shapes) > MAX_SHAPES:
            self.shapes.popitem(last=False)
        return self.shapes[size]

    def _stretch(self, steps: LocalSteps, shape: Shape, batches: Sequence[Tensor], remaining: int) -> None:
        """Take as many steps as fit into the buffers; `remaining`: number of steps of this shape still to come."""
        rows = steps.select(torch.cat(list(batches)))
        for buffer, each in zip(shape.buffers, rows, strict=True):
            buffer[: len(batches)].copy_(each.view(len(batches), *buffer.shape[1:]))
        shape.place.zero_()
        for number in range(len(batches)):
            if shape.replay is None and self._worth_capturing(shape, remaining - number):
                shape.replay = self._captured(lambda: self._step(shape), self.own.generators)
            if shape.replay is not None:
                shape.replay()
            else:
                self.side.do(lambda: self._step(shape))
                shape.taken += 1

    def _worth_capturing(self, shape: Shape, remaining: int) -> bool:
        if shape.taken < WARM_UP_STEPS:
            return False
        return self.rules.required or shape.clients > 1 or remaining >= MIN_STEPS_TO_CAPTURE

    def _captured(self, work: Work, generators: Sequence[torch.Generator]) -> Work:
        try:
            return capture(work, generators, self.rules.device, self.rules.pool)
        except MethodError as error:
            if self.rules.required:
                raise
            warnings.warn(f"{error}: steps are taken without it, which is slower", RuntimeWarning, stacklevel=2)
            return work

    def _step(self, shape: Shape) -> None:
        """Take the next step of those in the buffers."""
        own = self.own
        batch = tuple(buffer.index_select(0, shape.place).squeeze(0) for buffer in shape.buffers)
        shape.place.add_(1)
        with self.launches.together():
            loss, metrics = self.rules.loss(self.model, self.parameters, own.inputs(batch), own.extra)
        for parameter in self.parameters.values():
            parameter.grad = None
        if self.one.dtype != loss.dtype or self.one.device != loss.device:
            self.one = torch.ones_like(loss)  # in the first step: a captured one finds it
        loss.backward(self.one)
        self.optimiser.step()
        self.rules.after(self.parameters, self.companions)
        values = {"loss": loss, **metrics}
        parts = [value.detach().float() for value in values.values()]
        row = parts[0].view(1) if len(parts) == 1 else torch.stack(parts)
        if not self.names:
            self.names = tuple(values)
            self.sums = torch.zeros_like(row)
        self.sums.add_(row)


class StepKeeper:
    """The kinds of step that a method's clients take, each kept for later clients.

    Attributes:
        lock: acquired while a client's steps are taken and their results are read: threads share the kept tensors.
        rules: of the last round, by its number.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._kinds: OrderedDict[Hashable, KeptSteps] = OrderedDict()
        self.pool = GraphPool()
        self.rules: dict[int, StepRules] = {}

    def kept(self, steps: LocalSteps, rules: StepRules) -> KeptSteps:
        """Return the kept steps of a client's kind, made by these rules where there are none yet."""
        kind = _kind(steps, rules)
        if kind not in self._kinds:
            self._kinds[kind] = KeptSteps(steps, rules)
        self._kinds.move_to_end(kind)
        while len(self._kinds) > MAX_KINDS:
            self._kinds.popitem(last=False)
        return self._kinds[kind]


def _finished(taken: TakenSteps) -> Update:
    raise AssertionError("kept steps belong to no client")


def _set_states(generators: Sequence[torch.Generator], source: Sequence[torch.Generator]) -> None:
    for generator, other in zip(generators, source, strict=True):
        generator.set_state(other.get_state())


def _tensors(steps: LocalSteps) -> list[Tensor]:
    """Return all tensors that steps read and write, without the optimiser's and the samples."""
    networks = [steps.network, *(steps.companions[name] for name in sorted(steps.companions))]
    tensors = [tensor for network in networks for tensor in (*network.parameters(), *network.buffers())]
    return [*tensors, *(steps.extra[name] for name in sorted(steps.extra))]


def _kind(steps: LocalSteps, rules: StepRules) -> Hashable:
    """Return what must be equal for a step to be the same computation on other numbers."""
    return (
        rules.groups,
        tuple(sorted((name, network.training) for name, network in steps.companions.items())),
        tuple((tensor.shape, tensor.dtype) for tensor in _tensors(steps)),
        tuple(sorted(steps.extra)),
        len(steps.generators),
        steps.preparation is None,
        steps.alike,
    )
