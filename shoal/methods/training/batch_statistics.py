"""BatchNorm's statistics found anew: the moments of each layer's input, layer by layer, over several parties.

A network whose weights were averaged carries the mean of statistics that no network ever had: they are not those of
what its layers receive. Here each party passes its own batches through the network as it would be judged, and says for
each layer the mean and variance of every channel; parties are put together by the law of total variance. A layer is
settled before the next one is measured, so that the network, in evaluation mode, answers as it would in training mode
to all the data in one batch, without any sample leaving its party: one small message for each layer and party.

Source: Ioffe and Szegedy 2015, section 3.1 (statistics of the population); Izmailov et al. 2018, section 3.2 (found
anew for averaged weights).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from shoal.methods.contract.context import Context
from shoal.methods.contract.message import Tensors


@dataclass(frozen=True)
class Party:
    """Whose data a network is measured on.

    Attributes:
        weight: what the party counts in the whole, say its number of samples.
        batches: each makes a batch as the network takes it, (n, ...); asked again for every layer.
    """

    weight: float
    batches: Sequence[Callable[[], Tensor]]


@dataclass(frozen=True)
class Moments:
    """Mean and variance of each channel, float64 (channels,), of what a layer receives from one party."""

    weight: float
    mean: Tensor
    variance: Tensor


def has_batch_norm(network: nn.Module) -> bool:
    """Whether a network keeps running statistics."""
    return any(_keeps_statistics(module) for module in network.modules())


@torch.no_grad()
def settle(network: nn.Module, parties: Sequence[Party], context: Context) -> Tensors:
    """Give a network the statistics that its layers' inputs have over all parties.

    Variances are of the population (divided by n), as training mode normalises. Layers that the forward pass does not
    reach keep what they have. One party with one batch takes one pass; otherwise there is one for each layer.

    Args:
        network: changed in place, and left in evaluation mode.
        parties: at least one with a batch, where the network has BatchNorm.
        context: for the precision of the pass.

    Returns:
        The new statistics by their names in the network's state; empty where it has no BatchNorm.
    """
    network.eval()
    names = {module: name for name, module in network.named_modules() if _keeps_statistics(module)}
    if not names:
        return {}
    asked = [party for party in parties if party.batches]
    if [len(party.batches) for party in asked] == [1]:
        layers = _settle_in_one_pass(network, list(names), asked[0].batches[0](), context)
    else:
        layers = _order(network, list(names), parties, context)
        for layer in layers:
            whole = together([_moments(network, layer, party, context) for party in asked])
            _set(layer, whole.mean, whole.variance)
    found: Tensors = {}
    for layer in layers:
        for statistic in ("running_mean", "running_var"):
            found[f"{names[layer]}.{statistic}"] = getattr(layer, statistic).clone()
    return found


def together(parts: Sequence[Moments]) -> Moments:
    """Moments of the whole from those of its parts: the law of total variance, weighted.

    >>> one, other = (torch.tensor([value], dtype=torch.float64) for value in (0.0, 4.0))
    >>> whole = together([Moments(3.0, one, one), Moments(1.0, other, one)])
    >>> whole.mean.tolist(), whole.variance.tolist()
    ([1.0], [3.0])
    """
    weight = sum(part.weight for part in parts)
    mean = torch.stack([part.mean * (part.weight / weight) for part in parts]).sum(0)
    spread = [(part.variance + (part.mean - mean).square()) * (part.weight / weight) for part in parts]
    return Moments(weight, mean, torch.stack(spread).sum(0))


def _keeps_statistics(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm) and module.running_mean is not None


class _Reached(Exception):
    """The layer in question has its input: the rest of the pass is not needed."""


def _set(layer: _BatchNorm, mean: Tensor, variance: Tensor) -> None:
    assert layer.running_mean is not None
    assert layer.running_var is not None
    layer.running_mean.copy_(mean)
    layer.running_var.copy_(variance)


def _settle_in_one_pass(
    network: nn.Module, layers: Sequence[_BatchNorm], batch: Tensor, context: Context
) -> list[_BatchNorm]:
    """Settle each layer as the one batch that there is comes to it, and so before the next one; who was reached."""
    reached: list[_BatchNorm] = []

    def settle_first(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if module in reached:
            return  # used twice: the first input counts, as layer by layer
        x = inputs[0].float()
        variance, mean = torch.var_mean(x, dim=_all_but_channels(x), correction=0)
        _set(module, mean, variance)  # type: ignore[arg-type]
        reached.append(module)  # type: ignore[arg-type]

    hooks = [layer.register_forward_pre_hook(settle_first) for layer in layers]
    try:
        # `forward`, not a call: a compiled network would not stop for hooks.
        with context.autocast():
            network.forward(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return reached


def _all_but_channels(x: Tensor) -> list[int]:
    return [axis for axis in range(x.dim()) if axis != 1]


def _order(
    network: nn.Module, layers: Sequence[_BatchNorm], parties: Sequence[Party], context: Context
) -> list[_BatchNorm]:
    """The layers that a pass reaches, first come first."""
    order: list[_BatchNorm] = []

    def note(module: nn.Module, _: Any) -> None:
        if module not in order:
            order.append(module)  # type: ignore[arg-type]

    batch = next(batch for party in parties for batch in party.batches)()
    hooks = [layer.register_forward_pre_hook(note) for layer in layers]
    try:
        # `forward`, not a call: a compiled network would not stop for hooks.
        with context.autocast():
            network.forward(batch[:2])
    finally:
        for hook in hooks:
            hook.remove()
    return order


def _moments(network: nn.Module, layer: _BatchNorm, party: Party, context: Context) -> Moments:
    """What a layer receives from a party's batches."""
    parts: list[Moments] = []

    def measure(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0].double()
        variance, mean = torch.var_mean(x, dim=_all_but_channels(x), correction=0)
        parts.append(Moments(x.numel() / x.shape[1], mean, variance))
        raise _Reached

    hook = layer.register_forward_pre_hook(measure)
    try:
        for batch in party.batches:
            try:
                with context.autocast():
                    network.forward(batch())
            except _Reached:
                pass
    finally:
        hook.remove()
    whole = together(parts)
    return Moments(party.weight, whole.mean, whole.variance)
