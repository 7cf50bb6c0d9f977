"""BatchNorm's statistics, recomputed: from sums over each layer's input, layer by layer, of several parties.

A network whose weights were averaged carries the mean of other networks' statistics, which are not those of its own
layers' inputs. Here each party passes its own batches through the network and reports for each layer the number of
values, their sum and the sum of their squares in every channel, which are added. A layer is settled before the next is
measured, so that the network, in evaluation mode, answers as it would in training mode to all the data in one batch. No
sample leaves its party: it sends one small message for each layer.

Source: Ioffe and Szegedy 2015, section 3.1 (statistics of the population); Izmailov et al. 2018, section 3.2
(recomputed for averaged weights).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from shoal.methods.contract.context import Context
from shoal.methods.contract.message import Tensors
from shoal.methods.contract.site_sums import LayerSums, SiteSums

LIVE_TENSORS = 3
"""Tensors of a layer's size that a pass holds at once: what a layer gets, what it gives, and a shortcut."""
MOST_BYTES = {"cpu": 1 << 30, "cuda": 4 << 30}
"""What all batches may take in one pass, by the kind of device."""
BLOCK_ROWS = 4096
"""Rows whose float64 copies are made at once: a block of them stays in the processor's cache."""


@dataclass(frozen=True)
class Party:
    """An owner of data on which a network is measured.

    Attributes:
        weight: the party's weight among all parties, such as its number of samples.
        batches: each returns a batch of inputs, (n, ...); called again for every layer.
    """

    weight: float
    batches: Sequence[Callable[[], Tensor]]


def has_batch_norm(network: nn.Module) -> bool:
    """Return whether a network keeps running statistics."""
    return bool(_norms(network))


@torch.no_grad()
def settle(network: nn.Module, parties: Sequence[Party], context: Context, at_site: SiteSums | None = None) -> Tensors:
    """Give a network the statistics that its layers' inputs have over all parties.

    Variances are of the population (divided by n), as in training mode. Layers that the forward pass does not reach
    keep their statistics. Where all batches fit into memory as one, one pass is enough; else there is one for each
    layer, with the same statistics up to rounding.

    Args:
        network: changed in place, and left in evaluation mode.
        parties: at least one with a batch, where the network has BatchNorm.
        context: gives the precision of the pass.
        at_site: knows the sums of all sites, where the parties are those of one site.

    Returns:
        The new statistics by their names in the network's state; empty where it has no BatchNorm.

    Raises:
        LayerNeeded: the sums of all sites are not known of all layers.
    """
    network.eval()
    norms = _norms(network)
    if not norms:
        return {}
    measured = [party for party in parties if party.batches]
    layers, needed = _order(network, list(norms), measured, context)
    if at_site is None and needed <= _available(context):
        _settle_in_one_pass(network, layers, measured, context)
    else:
        for number, layer in enumerate(layers):
            measure = partial(_sums_of_parties, network, layer, measured, context)
            _settle_layer(layer, [measure() if at_site is None else at_site.layer(number, measure)])
    statistics: Tensors = {}
    for layer in layers:
        for statistic in ("running_mean", "running_var"):
            statistics[f"{norms[layer]}.{statistic}"] = getattr(layer, statistic).clone()
    return statistics


def fits_in_one_pass(network: nn.Module, x: Tensor, context: Context) -> bool:
    """Return whether inputs x (n, ...) may pass the network at once when it is settled."""
    layers = list(_norms(network))
    return not layers or _order(network, layers, [Party(1.0, [lambda: x])], context)[1] <= _available(context)


@torch.no_grad()
def settle_in_one_pass(network: nn.Module, x: Tensor, context: Context) -> None:
    """Do what `settle` does for one party with one batch x (n, ...) that fits; no value is looked at."""
    network.eval()
    _settle_in_one_pass(network, list(_norms(network)), [Party(1.0, [lambda: x])], context)


def added(parts: Sequence[LayerSums]) -> LayerSums:
    """Return the sums of the whole from those of its parts, at least one."""
    return reduce(add, parts)


def _norms(network: nn.Module) -> dict[_BatchNorm, str]:
    """Return the layers that keep statistics, with their names."""
    modules = network.named_modules()
    return {m: name for name, m in modules if isinstance(m, _BatchNorm) and m.running_mean is not None}


def _available(context: Context) -> int:
    return MOST_BYTES.get(context.device.type, MOST_BYTES["cpu"])


class _Reached(Exception):
    """The layer has received its input: the rest of the pass is not needed."""


def _settle_in_one_pass(
    network: nn.Module, layers: Sequence[_BatchNorm], parties: Sequence[Party], context: Context
) -> None:
    """Settle each layer when all batches, as one, reach it, before the next layer."""
    batches = [[batch() for batch in party.batches] for party in parties]
    sizes = [len(batch) for of_party in batches for batch in of_party]
    settled: set[nn.Module] = set()

    def settle_first(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if module in settled:
            return  # a layer that is used twice: the first input counts, as in one pass a layer
        of_batches = iter([_sums_of(x) for x in inputs[0].split(sizes)])
        _settle_layer(module, [_of_party(party, [next(of_batches) for _ in party.batches]) for party in parties])
        settled.add(module)

    hooks = [layer.register_forward_pre_hook(settle_first) for layer in layers]
    try:
        with context.autocast():
            all_batches = [batch for of_party in batches for batch in of_party]
            network(torch.cat(all_batches) if len(all_batches) > 1 else all_batches[0])
    finally:
        for hook in hooks:
            hook.remove()


def _settle_layer(layer: Any, parts: Sequence[LayerSums]) -> None:
    whole = added(parts)
    layer.running_mean.copy_(whole.mean)
    layer.running_var.copy_(whole.variance)


def _order(
    network: nn.Module, layers: Sequence[_BatchNorm], parties: Sequence[Party], context: Context
) -> tuple[list[_BatchNorm], int]:
    """Return the layers that a pass reaches, in its order, and about how many bytes all batches take in one pass."""
    order: list[_BatchNorm] = []
    largest = 0

    def record(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        nonlocal largest
        largest = max(largest, inputs[0].element_size() * inputs[0].numel() // len(inputs[0]))
        if module not in order:
            order.append(module)  # type: ignore[arg-type]

    batch = parties[0].batches[0]()
    hooks = [layer.register_forward_pre_hook(record) for layer in layers]
    try:
        with context.autocast():
            network(batch[:2])
    finally:
        for hook in hooks:
            hook.remove()
    samples = len(batch) * sum(len(party.batches) for party in parties)
    return order, LIVE_TENSORS * largest * samples


def _sums_of(x: Tensor) -> LayerSums:
    """Return the sums of an input x (n, channels, ...), on a CPU by blocks that stay in its cache."""
    rows = x.movedim(1, -1).reshape(-1, x.shape[1])
    parts = []
    for block in rows.split(BLOCK_ROWS if x.device.type == "cpu" else len(rows)):
        values = block.to(torch.float64, copy=True)
        parts.append(LayerSums(float(len(values)), values.sum(0), values.square_().sum(0)))
    return added(parts)


def _of_party(party: Party, parts: Sequence[LayerSums]) -> LayerSums:
    """Return the sums of a party from those of its batches, scaled so that the number of values is its weight."""
    whole = added(parts)
    scale = party.weight / whole.count
    return LayerSums(party.weight, whole.total * scale, whole.squares * scale)


def _sums_of_parties(network: nn.Module, layer: _BatchNorm, parties: Sequence[Party], context: Context) -> LayerSums:
    return added([layer_sums(network, layer, party, context) for party in parties])


def layer_sums(network: nn.Module, layer: _BatchNorm, party: Party, context: Context) -> LayerSums:
    """Return the sums of a layer's input over a party's batches: all that the party sends for this layer."""
    parts: list[LayerSums] = []

    def measure(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        parts.append(_sums_of(inputs[0]))
        raise _Reached

    hook = layer.register_forward_pre_hook(measure)
    try:
        for batch in party.batches:
            try:
                with context.autocast():
                    network(batch())
            except _Reached:
                pass
    finally:
        hook.remove()
    return _of_party(party, parts)
