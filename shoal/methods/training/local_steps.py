"""A client's local gradient steps, laid out before they are taken."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from shoal.methods.contract.base import Client, Update
from shoal.methods.contract.message import Tensors
from shoal.methods.training.model_stack import Batch, LocalModel
from shoal.methods.training.shared_launches import SharedLaunches
from shoal.models.network_copies import copy_all


@dataclass(frozen=True)
class TakenSteps:
    """The result of a client's steps.

    Attributes:
        metrics: means over the steps of the loss and of its metrics, then those of the preparation.
        optimiser: the optimiser's state as tensors, where it is kept over rounds; otherwise empty.
    """

    metrics: dict[str, float]
    optimiser: Tensors


@dataclass(frozen=True)
class Preparation:
    """Work that is done once for a client, before its first step.

    Attributes:
        select: returns tensors of the client that the work needs, such as some of its samples.
        work: does it, given arguments as of `GradientMethod.step_loss`; returns metrics of the round, float32 scalars.
            Like `LocalSteps.inputs` it may be called with other clients' tensors, and draws from generators on the
            device alone. What it draws from `LocalSteps.generators`, the first step draws again.
        generators: all others that it draws from.
        restores: the trained network's buffers are afterwards as before.
    """

    select: Callable[[], Batch]
    work: Callable[[LocalModel, Tensors, Batch, Tensors], Mapping[str, Tensor]]
    generators: tuple[torch.Generator, ...] = ()
    restores: bool = False


@dataclass(frozen=True)
class LocalSteps:
    """The parts of a client's gradient steps.

    Attributes:
        client: takes the steps.
        network: holds the initial weights, in training mode; trained in place.
        batches: positions of the client's samples, one tensor a step.
        select: returns the client's samples at some positions, and other tensors (n, ...) with a row for each position.
            It draws nothing, and may be called for several steps at once.
        inputs: returns the tensors that the loss takes, from those selected for a step; draws from the client's streams
            here. It reads nothing else of the client, since it may be called with other clients' samples.
        finish: returns the update, once the network is trained.
        companions: networks by name that the loss uses and that no gradient trains: a past model, a momentum target.
            Each is in the mode (training or evaluation) in which the loss calls it.
        extra: tensors that every step of this client uses.
        optimiser: where an optimiser continues over rounds, its state as of `TakenSteps.optimiser` (other tensors are
            ignored; empty before the first round). None: each round begins with a fresh one.
        alike: clients are computed together only where this value is equal: whatever else decides which tensors
            `inputs` returns.
        generators: all generators that `inputs` draws from on the device.
        preparation: what is done before the first step.
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
    preparation: Preparation | None = None

    def batch(self, positions: Tensor) -> Batch:
        """Return the tensors that the loss of a step takes."""
        return self.inputs(self.select(positions))

    def prepare(self, model: LocalModel, launches: SharedLaunches) -> Mapping[str, Tensor]:
        """Do what comes before the first step on this client's networks; return its metrics."""
        if self.preparation is None:
            return {}
        states = [generator.get_state() for generator in self.generators]
        metrics = prepared(self.preparation, model, self.preparation.select(), self.extra, launches)
        for generator, state in zip(self.generators, states, strict=True):
            generator.set_state(state)
        return metrics


def prepared(
    preparation: Preparation, model: LocalModel, batch: Batch, extra: Tensors, launches: SharedLaunches
) -> Mapping[str, Tensor]:
    """Do the work of a preparation, and return its metrics."""
    buffers = list(model.network.buffers()) if preparation.restores else []
    before = [torch.empty_like(tensor) for tensor in buffers]
    copy_all(before, buffers)
    parameters: Tensors = dict(model.network.named_parameters())
    with launches.together():
        metrics = preparation.work(model, parameters, batch, extra)
    copy_all(buffers, before)
    return metrics
