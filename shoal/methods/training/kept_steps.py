"""Local steps of one kind, captured once and replayed for client after client, round after round.

A captured step computes on the tensors that it was captured with. So these are kept: networks, other tensors and an
optimiser of their own, and the generators of the first client of a kind. Whatever a client brings is copied into them
before its steps, and what came of it is copied back. Its samples come in stretches: a buffer holds those of several
steps, and a counter on the device says which is next, so that the host launches a graph a step and nothing else.
"""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import torch
from torch import Tensor, nn

from shoal.methods.contract.base import Update
from shoal.methods.contract.context import MethodError
from shoal.methods.contract.message import Tensors
from shoal.methods.training.graphs import GraphPool, SideStream, Work, capture
from shoal.methods.training.local_steps import LocalSteps, TakenSteps
from shoal.methods.training.model_stack import Batch, LocalModel, StepResult
from shoal.methods.training.network_copies import copy_all, copy_network
from shoal.methods.training.optimiser_state import reset_optimiser

WARM_UP_STEPS = 3
"""Steps of a shape that are taken plainly before one is captured: the optimiser makes its state, libraries choose."""
STEPS_THAT_PAY = 16
"""With `auto` a shape that comes for the first client is captured only if so many of its steps are still to come."""
STRETCH_STEPS = 64
STRETCH_BYTES = 32 << 20
"""A buffer holds the samples of at most so many steps and bytes, and of one step at least."""
MAX_KINDS = 6
MAX_SHAPES = 8
"""So many kinds are kept, and so many shapes of each: those that were used last."""


@dataclass(frozen=True)
class StepRules:
    """What a method says about its steps.

    Attributes:
        loss: as `GradientMethod.step_loss`.
        after: as `GradientMethod.after_step`.
        optimiser: a fresh optimiser over parameters, at the learning rate of the client's round.
        device: where steps are taken.
        must: a step that cannot be captured is an error; otherwise it is taken plainly.
        pool: the memory that all graphs share.
    """

    loss: Callable[[LocalModel, Tensors, Batch, Tensors], StepResult]
    after: Callable[[Tensors, dict[str, Tensors]], None]
    optimiser: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    device: torch.device
    must: bool = False
    pool: GraphPool = field(default_factory=GraphPool)


@dataclass
class Shape:
    """Steps on batches of one shape.

    Attributes:
        buffers: of each tensor of a batch (steps, n, ...), those of the steps to come.
        place: int64 (1,), which of them is next.
        taken: how many steps were taken plainly.
        clients: how many clients had some.
        replay: takes a step; None: none was captured.
    """

    buffers: tuple[Tensor, ...]
    place: Tensor
    taken: int = 0
    clients: int = 0
    replay: Work | None = None

    @property
    def capacity(self) -> int:
        """For how many steps the buffers have room."""
        return len(self.buffers[0])


@dataclass
class KeptSteps:
    """One kind of step, with the tensors on which it computes.

    Args:
        own: the first client's.
        rules: what the method says.
    """

    own: LocalSteps
    rules: StepRules
    names: tuple[str, ...] = ()
    shapes: OrderedDict[torch.Size, Shape] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        own = self.own
        # What is not computed with is let go: a client's memory may be large.
        own = self.own = replace(
            own,
            client=replace(own.client, memory={}, inbox=()),
            network=copy_network(own.network),
            companions={name: copy_network(network) for name, network in own.companions.items()},
            extra={name: tensor.clone() for name, tensor in own.extra.items()},
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
        self.side = SideStream(self.rules.device)
        self.sums = torch.empty(0)

    def take(self, steps: LocalSteps) -> tuple[dict[str, Tensor], int]:
        """Take a client's steps.

        Returns:
            The sums of the loss and the other numbers over the steps, scalars, and how many steps there were. The
            optimiser stays as the last step left it, until the next client's.

        Raises:
            MethodError: a step cannot be captured, and `rules.must` it.
        """
        batches, given = list(steps.batches), _tensors(steps)
        if not batches:
            return {}, 0
        self._begin(steps, given)
        seen: set[torch.Size] = set()
        for size, group in groupby(batches, key=lambda batch: batch.shape):
            same = list(group)
            shape = self._shape(steps, size, same[0])
            shape.clients += size not in seen
            seen.add(size)
            for at in range(0, len(same), shape.capacity):
                self._stretch(steps, shape, same[at : at + shape.capacity], len(same) - at)
        self._end(steps, given)
        return dict(zip(self.names, self.sums.unbind(), strict=True)), len(batches)

    def _begin(self, steps: LocalSteps, given: Sequence[Tensor]) -> None:
        copy_all(self.tensors, given)
        for kept, own in zip(self.own.generators, steps.generators, strict=True):
            kept.set_state(own.get_state())
        reset_optimiser(self.optimiser, steps.optimiser or {})
        if self.names:
            self.sums.zero_()

    def _end(self, steps: LocalSteps, given: Sequence[Tensor]) -> None:
        copy_all(given[: self.changing], self.tensors[: self.changing])
        for kept, own in zip(self.own.generators, steps.generators, strict=True):
            own.set_state(kept.get_state())

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

    def _stretch(self, steps: LocalSteps, shape: Shape, batches: Sequence[Tensor], left: int) -> None:
        """Take as many steps as fit into the buffers; `left`: how many of this shape are still to come."""
        rows = steps.select(torch.cat(list(batches)))
        for buffer, each in zip(shape.buffers, rows, strict=True):
            buffer[: len(batches)].copy_(each.view(len(batches), *buffer.shape[1:]))
        shape.place.zero_()
        for number in range(len(batches)):
            if shape.replay is None and self._pays(shape, left - number):
                shape.replay = self._captured(shape)
            if shape.replay is not None:
                shape.replay()
            else:
                self.side.do(lambda: self._step(shape))
                shape.taken += 1

    def _pays(self, shape: Shape, left: int) -> bool:
        if shape.taken < WARM_UP_STEPS:
            return False
        return self.rules.must or shape.clients > 1 or left >= STEPS_THAT_PAY

    def _captured(self, shape: Shape) -> Work:
        def step() -> None:
            self._step(shape)

        try:
            return capture(step, self.own.generators, self.rules.device, self.rules.pool)
        except MethodError as error:
            if self.rules.must:
                raise
            warnings.warn(f"{error}: the steps are taken plainly, which is slower", RuntimeWarning, stacklevel=2)
            return step

    def _step(self, shape: Shape) -> None:
        """The next step of those in the buffers."""
        own = self.own
        batch = tuple(buffer.index_select(0, shape.place).squeeze(0) for buffer in shape.buffers)
        shape.place.add_(1)
        loss, numbers = self.rules.loss(self.model, self.parameters, own.inputs(batch), own.extra)
        for parameter in self.parameters.values():
            parameter.grad = None
        loss.backward()
        self.optimiser.step()
        self.rules.after(self.parameters, self.companions)
        values = {"loss": loss, **numbers}
        found = torch.stack([value.detach().float() for value in values.values()])
        if not self.names:
            self.names = tuple(values)
            self.sums = torch.zeros_like(found)
        self.sums.add_(found)


class StepKeeper:
    """The kinds of step that a method's clients take, each kept for the clients to come.

    Attributes:
        turn: held while a client's steps are taken and what they made is read: threads share what is kept.
    """

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self._kinds: OrderedDict[Hashable, KeptSteps] = OrderedDict()
        self.pool = GraphPool()

    def kept(self, steps: LocalSteps, rules: StepRules) -> KeptSteps:
        """The kept steps of a client's kind; `rules` are those of its kind."""
        kind = _kind(steps, rules)
        if kind not in self._kinds:
            self._kinds[kind] = KeptSteps(steps, rules)
        self._kinds.move_to_end(kind)
        while len(self._kinds) > MAX_KINDS:
            self._kinds.popitem(last=False)
        return self._kinds[kind]


def _finished(taken: TakenSteps) -> Update:
    raise AssertionError("kept steps are of no client")


def _tensors(steps: LocalSteps) -> list[Tensor]:
    """All that steps read and write, beside the optimiser and the samples."""
    networks = [steps.network, *(steps.companions[name] for name in sorted(steps.companions))]
    found = [tensor for network in networks for tensor in (*network.parameters(), *network.buffers())]
    return [*found, *(steps.extra[name] for name in sorted(steps.extra))]


def _kind(steps: LocalSteps, rules: StepRules) -> Hashable:
    """What must be equal for a step to be the same computation on other numbers."""
    probe = nn.Parameter(torch.zeros(1, device=rules.device))
    groups = rules.optimiser([probe]).param_groups
    return (
        tuple(sorted((name, repr(value)) for group in groups for name, value in group.items() if name != "params")),
        tuple(sorted((name, network.training) for name, network in steps.companions.items())),
        tuple((tensor.shape, tensor.dtype) for tensor in _tensors(steps)),
        tuple(sorted(steps.extra)),
        len(steps.generators),
        steps.alike,
    )
