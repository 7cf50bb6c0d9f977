"""What the local steps of a CF-CL device are taken on: batches of its own samples and of those it has pulled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor

from shoal.core.streams import Streams
from shoal.data.augment import Recipe, augment
from shoal.data.view import Samples
from shoal.methods.training.local import as_input, unit_images
from shoal.methods.training.model_stack import Batch

Negatives = Literal["batch", "held", "pulled"]
"""What a triplet's negative is: the next sample of the batch, any other that the device holds, or one it has pulled."""


def batch_positions(
    samples: Samples, pulled: int, size: int, steps: int, streams: Streams, negatives: Negatives
) -> Iterator[Tensor]:
    """For each step min(size, n) of the positions of all n samples, without repetition, and their negatives' positions.

    All are drawn before the first step, so that no step waits for a copy to the samples' device.

    Args:
        samples: the device's own, then those it has pulled.
        pulled: how many were pulled.
        size: of a batch.
        steps: how many.
        streams: the device's.
        negatives: what negatives are drawn from; with `batch` none are.

    Returns:
        Of each step int64 (m, 1), or (m, 2) with a negative for each.
    """
    count = len(samples)
    order, others = streams.torch("batches"), streams.torch("negatives")
    drawn = []
    for _ in range(steps):
        columns = [torch.randperm(count, generator=order)[:size]]
        if negatives == "pulled":
            columns.append(pulled_negatives(columns[0], count - pulled, pulled, others))
        elif negatives == "held":
            columns.append(held_negatives(columns[0], count, others))
        drawn.append(torch.stack(columns, 1))
    return iter(torch.stack(drawn).to(samples.index.device))


def selected(samples: Samples) -> Callable[[Tensor], Batch]:
    """A function from what `batch_positions` drew, (m, 1 or 2), to the samples, and their negatives if it drew some.

    Args:
        samples: the device's own, then those it has pulled.
    """

    def select(drawn: Tensor) -> Batch:
        return tuple(samples.raw(column) for column in drawn.unbind(1))

    return select


def batch_inputs(recipe: Recipe, generator: torch.Generator, raw_anchor: bool) -> Callable[[Batch], Batch]:
    """A function from `selected` samples to first views, then second views, (2m, ...), and negatives (m, ...).

    Args:
        recipe: of the views.
        generator: of the views, where the samples are.
        raw_anchor: the first view of a sample is the sample itself.
    """

    def inputs(batch: Batch) -> Batch:
        x = unit_images(batch[0])
        first = x if raw_anchor else augment(x, recipe, generator)
        both = as_input(torch.cat((first, augment(x, recipe, generator))))
        return (both, *(as_input(unit_images(negatives)) for negatives in batch[1:]))

    return inputs


def held_negatives(positions: Tensor, held: int, generator: torch.Generator) -> Tensor:
    """For each sample of a batch any other one that the device holds, each as likely, int64 (n,), as positions.

    Args:
        positions: of the batch, among all samples held.
        held: how many these are, own and pulled; at least two.
        generator: of the draw.
    """
    which = torch.randint(held - 1, (len(positions),), generator=generator)
    return which + (which >= positions)


def pulled_negatives(positions: Tensor, own: int, pulled: int, generator: torch.Generator) -> Tensor:
    """For each sample of a batch one that was pulled and is not the sample itself, int64 (n,), as positions.

    Args:
        positions: of the batch, into a device's own samples followed by what it has pulled.
        own, pulled: how many of each there are; at least two were pulled.
        generator: of the draw.
    """
    which = torch.randint(pulled, (len(positions),), generator=generator)
    itself = which == positions - own
    return own + torch.where(itself, (which + 1) % pulled, which)
