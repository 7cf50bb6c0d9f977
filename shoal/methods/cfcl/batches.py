"""Batches for the local steps of a CF-CL device: of its own samples and of those it has pulled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor

from shoal.core.streams import Streams
from shoal.data.views.augment import AnyRecipe, augment
from shoal.data.views.view import DeviceData, Samples
from shoal.methods.training.local import as_input
from shoal.methods.training.model_stack import Batch

Negatives = Literal["batch", "held", "pulled"]
"""The negative of a triplet: the next sample of the batch, any other that the device holds, or one it has pulled."""


def batch_positions(
    samples: Samples, pulled: int, size: int, steps: int, streams: Streams, negatives: Negatives
) -> Iterator[Tensor]:
    """Yield for each step min(size, n) positions among n samples, without repetition, and their negatives' positions.

    All are drawn before the first step, so that no step waits for a copy to the samples' device.

    Args:
        samples: the device's own, then those it has pulled.
        pulled: number of pulled samples.
        size: number of samples in a batch.
        steps: number of steps.
        streams: the device's.
        negatives: where negatives are drawn from; `batch`: none are drawn.

    Yields:
        For each step int64 (m, 1), or (m, 2) with a negative for each.
    """
    count = len(samples)
    order = streams.torch("batches")
    others = streams.torch("negatives")
    drawn = []
    for _ in range(steps):
        columns = [torch.randperm(count, generator=order)[:size]]
        if negatives == "pulled":
            columns.append(pulled_negatives(columns[0], count - pulled, pulled, others))
        elif negatives == "held":
            columns.append(held_negatives(columns[0], count, others))
        drawn.append(torch.stack(columns, 1))
    return iter(torch.stack(drawn).to(samples.index.device))


def select_from(samples: Samples) -> Callable[[Tensor], Batch]:
    """Return a function from positions of `batch_positions`, (m, 1 or 2), to the samples and any negatives drawn.

    Args:
        samples: the device's own, then those it has pulled.
    """

    def select(drawn: Tensor) -> Batch:
        return tuple(samples.raw(column) for column in drawn.unbind(1))

    return select


def batch_inputs(
    data: DeviceData, recipe: AnyRecipe, generator: torch.Generator, raw_anchor: bool
) -> Callable[[Batch], Batch]:
    """Return a function from selected samples to first views, then second views, (2m, ...), and negatives (m, ...).

    Args:
        data: the set of the samples.
        recipe: of the views.
        generator: draws the views, on the samples' device.
        raw_anchor: the first view of a sample is the sample itself.
    """

    def inputs(batch: Batch) -> Batch:
        x = data.computable(batch[0])
        first = x if raw_anchor else augment(x, recipe, generator)
        both = as_input(torch.cat((first, augment(x, recipe, generator))))
        return (both, *(as_input(data.computable(negatives)) for negatives in batch[1:]))

    return inputs


def held_negatives(positions: Tensor, samples: int, generator: torch.Generator) -> Tensor:
    """Draw for each sample of a batch any other that the device holds, all equally likely: positions int64 (n,).

    Args:
        positions: of the batch, among all samples held.
        samples: number of samples held, own and pulled; at least two.
        generator: draws them.
    """
    drawn = torch.randint(samples - 1, (len(positions),), generator=generator)
    return drawn + (drawn >= positions)


def pulled_negatives(positions: Tensor, own: int, pulled: int, generator: torch.Generator) -> Tensor:
    """Draw for each sample of a batch one that was pulled and is not the sample itself: positions int64 (n,).

    Args:
        positions: of the batch, among a device's own samples followed by those it has pulled.
        own, pulled: number of samples of each kind; at least two pulled ones.
        generator: draws them.
    """
    drawn = torch.randint(pulled, (len(positions),), generator=generator)
    same = drawn == positions - own
    return own + torch.where(same, (drawn + 1) % pulled, drawn)
