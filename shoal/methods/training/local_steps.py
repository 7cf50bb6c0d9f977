"""A client's local gradient steps, laid out before they are taken."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from shoal.methods.contract.base import Client, Update
from shoal.methods.contract.message import Tensors
from shoal.methods.training.model_stack import Batch


@dataclass(frozen=True)
class TakenSteps:
    """What became of a client's steps.

    Attributes:
        metrics: means over the steps of the loss and of the other numbers.
        optimiser: the optimiser's state as tensors, where it is kept; otherwise empty.
    """

    metrics: dict[str, float]
    optimiser: Tensors


@dataclass(frozen=True)
class LocalSteps:
    """What a client's gradient steps need.

    Attributes:
        client: whose they are.
        network: with the weights to start from, in training mode; trained in place.
        batches: positions into the client's samples, a step each.
        select: the client's own samples at some positions, and whatever else belongs to each: tensors (n, ...) with a
            row for each position. It draws nothing, and may be asked for several steps at once.
        inputs: of what `select` gave for a step's positions, the tensors that the loss takes; draws from the client's
            streams here. Reads nothing else of the client: it may be asked about other clients' samples.
        finish: the update, once the network is trained.
        companions: networks by name that the loss asks and that no gradient trains: a past model, a momentum target.
            Each is in the mode (training or evaluation) in which it is to be asked.
        extra: tensors that every step of this client uses.
        generators: all that `inputs` draws from on the device.
        optimiser: where an optimiser goes on over rounds, its state as `TakenSteps.optimiser` gave it (other tensors
            are ignored; empty before the first round). None: each round begins with a fresh one.
        alike: in one computation, only clients with equal values are taken together: what else decides which tensors
            `inputs` gives.
    """

    client: Client
    network: nn.Module
    batches: Iterable[Tensor]
    select: Callable[[Tensor], Batch]
    inputs: Callable[[Batch], Batch]
    finish: Callable[[TakenSteps], Update]
    companions: Mapping[str, nn.Module] = field(default_factory=dict)
    extra: Tensors = field(default_factory=dict)
    optimiser: Mapping[str, Tensor] | None = None
    alike: Hashable = None
    generators: tuple[torch.Generator, ...] = ()

    def batch(self, positions: Tensor) -> Batch:
        """The tensors that the loss of a step takes."""
        return self.inputs(self.select(positions))
