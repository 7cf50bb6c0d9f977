"""Server optimisers, for which the clients' mean change is the gradient: momentum, Adam or Yogi.

With Delta_t the mean of the clients' models minus the model that they were sent (Reddi et al. 2021, arXiv 2003.00295,
algorithm 2; momentum as Hsu, Qi, Brown 2019, arXiv 1909.06335):

- momentum (FedAvgM): m_t = beta_1 m_{t-1} + Delta_t, x_{t+1} = x_t + lr m_t
- adam, yogi: m_t = beta_1 m_{t-1} + (1 - beta_1) Delta_t, x_{t+1} = x_t + lr m_t / (sqrt(v_t) + tau), and
  adam: v_t = beta_2 v_{t-1} + (1 - beta_2) Delta_t^2
  yogi: v_t = v_{t-1} - (1 - beta_2) Delta_t^2 sign(v_{t-1} - Delta_t^2)

with m_0 = 0 and v_0 = tau^2. They only move values that gradient steps train; statistics of layers are averaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from shoal.methods.averaging.robust import aggregated
from shoal.methods.contract.base import Server, Update
from shoal.methods.contract.context import AggregationSettings, ServerOptimiser
from shoal.methods.contract.message import Tensors

MOMENTUM = "server_optimiser.momentum/"
"""Prefix of the first moments in the server's state."""
VARIANCE = "server_optimiser.variance/"
"""Prefix of the second moments in the server's state."""
BETA_2 = 0.99
"""beta_2 of adam and yogi: the decay of the second moment."""
TAU = 1e-3
"""tau of adam and yogi, which bounds how far a small change moves the model."""

TrainedCounts = Mapping[str, int]
"""Number of values at the front of each tensor of the model that gradient steps train, by name."""


def trained_counts(network: nn.Module) -> dict[str, int]:
    """Return the number of trained values in each of a network's tensors: all of each parameter."""
    return {name: parameter.numel() for name, parameter in network.named_parameters()}


def next_average(
    server: Server,
    updates: Iterable[Update],
    settings: AggregationSettings,
    trained: Callable[[], TrainedCounts],
) -> Server:
    """Return the state after a round: its model is the clients' mean, moved by the server's optimiser.

    Args:
        server: the state that the clients began from.
        updates: the clients' models (`shoal.methods.averaging.robust.aggregated`).
        settings: of the mean and the optimiser.
        trained: returns which values the optimiser moves; called only where there is one.

    Raises:
        ValueError: see `aggregated`.
    """
    mean = aggregated(updates, settings, server.model)
    if settings.server.name == "none":
        return server.next(mean)
    model = dict(mean)
    state = dict(server.state)
    for name, count in trained().items():
        start = server.model[name]
        step, moments = optimiser_step(start, mean[name], server.state, settings.server, name)
        moved = mean[name].clone()
        moved.view(-1)[:count] = step.reshape(-1)[:count]
        model[name] = moved
        state |= moments
    return server.next(model, state=state)


def optimiser_step(
    start: Tensor, mean: Tensor, state: Tensors, settings: ServerOptimiser, name: str
) -> tuple[Tensor, Tensors]:
    """Move one tensor of the model.

    Args:
        start: the tensor that the clients began from, of any shape.
        mean: the mean of the clients' tensors, of the same shape.
        state: holds the moments after the round before; none before the first step.
        settings: of the optimiser.
        name: of the tensor.

    Returns:
        The tensor after the step, and its moments by their names in the server's state; computed in float64.
    """
    delta = mean.double() - start.double()
    before = state.get(MOMENTUM + name)
    momentum = torch.zeros_like(delta) if before is None else before.double()
    if settings.name == "momentum":
        momentum = settings.momentum * momentum + delta
        moved = start.double() + settings.rate * momentum
        return moved.to(start.dtype), {MOMENTUM + name: momentum.float()}
    momentum = settings.momentum * momentum + (1 - settings.momentum) * delta
    squared = delta.square()
    before = state.get(VARIANCE + name)
    variance = torch.full_like(delta, TAU**2) if before is None else before.double()
    if settings.name == "adam":
        variance = BETA_2 * variance + (1 - BETA_2) * squared
    else:
        variance = variance - (1 - BETA_2) * squared * torch.sign(variance - squared)
    moved = start.double() + settings.rate * momentum / (variance.sqrt() + TAU)
    return moved.to(start.dtype), {MOMENTUM + name: momentum.float(), VARIANCE + name: variance.float()}
