"""Parts of local work: a seeded network, batches, an optimiser, the loop over steps, views, weights as tensors."""

from __future__ import annotations

import functools
import itertools
import math
import threading
from collections.abc import Callable, Iterable, Mapping, MutableMapping

import torch
from torch import Tensor, nn

from shoal.core.streams import stream_seed
from shoal.data.views.augment import AnyRecipe, Recipe, choose_recipe, normalise
from shoal.methods.contract.base import Client
from shoal.methods.contract.context import Context, LocalSettings, MethodError
from shoal.methods.contract.message import Tensors
from shoal.models.network_copies import copy_all, copy_network

_GLOBAL_GENERATOR = threading.Lock()
"""Layers draw their initial weights from torch's one global generator: two threads must not do so at once."""


def seeded_build(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return the network that `build` makes when torch's global generator starts from `seed`; then restore it."""
    with _GLOBAL_GENERATOR, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def seeded(
    build: Callable[[], nn.Module],
    context: Context,
    purpose: str = "init",
    cache: MutableMapping[str, nn.Module] | None = None,
) -> nn.Module:
    """Return a network on the run's device whose initial weights depend on (seed, purpose) alone.

    Args:
        build: makes the network, from torch's global generator.
        context: of the run.
        purpose: of the draw.
        cache: networks built before, by purpose; a copy of one of them costs less than building it again.
    """
    if cache is not None and purpose in cache:
        network = copy_network(cache[purpose])
    else:
        network = seeded_build(build, stream_seed(context.seed, purpose))
        # Channels-last is faster for convolutions on CPUs and GPUs alike.
        network = network.to(context.device).to(memory_format=torch.channels_last)
        if cache is not None:
            cache[purpose] = copy_network(network)
    return network


def build_optimiser(
    parameters: Iterable[nn.Parameter], local: LocalSettings, round: int, *, capturable: bool = False
) -> torch.optim.Optimizer:
    """Return Adam or SGD by the settings, at the learning rate of round `round` (1-based).

    With `capturable`, its steps can be part of a CUDA graph; they have the same bits.

    Raises:
        MethodError: another name.
    """
    lr = local.lr * local.lr_decay ** (round - 1)
    if local.optimiser == "adam":
        return torch.optim.Adam(parameters, lr, weight_decay=local.weight_decay, fused=True, capturable=capturable)
    if local.optimiser == "sgd":
        return torch.optim.SGD(parameters, lr, momentum=local.momentum, weight_decay=local.weight_decay, fused=True)
    raise MethodError(f"local.optimiser {local.optimiser!r}: expected adam or sgd")


def batches(
    client: Client, local: LocalSettings, epochs: int | None = None, *, keep_last: bool = False
) -> Iterable[Tensor]:
    """Yield positions of the client's samples, batch by batch, each epoch in a new seeded order.

    The last partial batch is dropped; a client with fewer samples than a batch trains on all of them at once.

    Args:
        client: owns the samples.
        local: size of a batch, and number of epochs, or of batches, where `epochs` is None.
        epochs: number of epochs.
        keep_last: keep the last partial batch, unless it is a single sample, which has nothing to be contrasted with.

    Raises:
        ClientError: fewer than two samples.
    """
    client.check_samples(2)
    count = len(client.train)
    size = min(local.batch, count)
    generator = client.streams.torch("batches")
    device = client.train.index.device
    used = count // size * size
    if keep_last and count - used > 1:
        used = count
    steps: int | None = None
    if epochs is None:
        epochs = local.epochs
        if local.steps:
            steps = local.steps
            epochs = math.ceil(steps / math.ceil(used / size))
    # All epochs are drawn before the first step: one copy to the device, which no step waits for.
    orders = torch.stack([torch.randperm(count, generator=generator) for _ in range(epochs)]).to(device)
    parts = (part for order in orders for part in order[:used].split(size))
    yield from itertools.islice(parts, steps)


def view_recipe(context: Context, auto: Recipe | None = None) -> AnyRecipe:
    """Return the recipe of the run's views: the user's, else `auto` (of images), else the data set's.

    Raises:
        MethodError: a recipe or a setting that is for other kinds of data.
    """
    try:
        return choose_recipe(context.augment, context.spec.name, context.spec.shape, auto)
    except ValueError as error:
        raise MethodError(str(error)) from None


def as_input(x: Tensor) -> Tensor:
    """Return samples x (as of `Samples.x`) as inputs of a network.

    Images are normalised and channels-last. Encoders of vectors and windows scale their own input.
    """
    if x.dim() < 4:
        return x
    return normalise(x).contiguous(memory_format=torch.channels_last)


def as_low_input(x: Tensor, context: Context) -> Tensor:
    """Return `as_input(x)`, on a device in the precision in which the first layer casts it: two launches fewer.

    Only for networks that are called under `Context.autocast`.
    """
    if x.dim() < 4 or x.device.type == "cpu" or context.precision != "bf16":
        return as_input(x)
    result = torch.empty_like(x, dtype=torch.bfloat16, memory_format=torch.channels_last)
    return torch.add(_minus_two(x.device), x, alpha=4, out=result)


@functools.cache
def _minus_two(device: torch.device) -> Tensor:
    return torch.full((), -2.0, device=device)


def weights(network: nn.Module, prefix: str = "") -> Tensors:
    """Return a contiguous copy of the network's parameters and buffers, with `prefix` before their names."""
    state = network.state_dict(keep_vars=True)
    copies = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in state.values()]
    copy_all(copies, list(state.values()))
    return {prefix + name: copy for name, copy in zip(state, copies, strict=True)}


def load(network: nn.Module, tensors: Mapping[str, Tensor], prefix: str = "") -> None:
    """Load the tensors named `prefix...` into the network (all of its state, nothing else)."""
    values = {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    state = network.state_dict(keep_vars=True)
    if state.keys() == values.keys() and all(state[name].shape == tensor.shape for name, tensor in values.items()):
        copy_all(list(state.values()), [values[name] for name in state])
    else:
        network.load_state_dict(values)  # raises an error that names the difference
