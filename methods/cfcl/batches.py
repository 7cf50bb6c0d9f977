"""What the local steps of a CF-CL device are taken on: batches of its own samples and of those it has pulled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor

from core.streams import Streams
from data.augment import Recipe, augment
from data.view import Samples
from methods.training.local import as_input
from methods.training.model_stack import Batch

Negatives = Literal["batch", "held", "pulled"]
"""What a triplet's negative is: the next sample of the batch, any other that the device holds, or one it has pulled."""


def batch_positions(count: int, size: int, steps: int, streams: Streams) -> Iterator[Tensor]:
    """For each step min(size, count) of the positions 0 to count - 1, without repetition."""
    order = streams.torch("batches")
    return (torch.randperm(count, generator=order)[:size] for _ in range(steps))


def batch_inputs(
    samples: Samples, pulled: int, recipe: Recipe, streams: Streams, raw_anchor: bool, negatives: Negatives
) -> Callable[[Tensor], Batch]:
    """A function from a batch's positions to first views, then second views, (2n, ...), and negatives (n, ...).

    Args:
        samples: the device's own, then those it has pulled.
        pulled: how many were pulled.
        recipe: of the views.
        streams: the device's.
        raw_anchor: the first view of a sample is the sample itself.
        negatives: what they are drawn from; with `batch` none are given.
    """
    device = samples.index.device
    generator = streams.torch("views", device)
    others = streams.torch("negatives")

    def inputs(positions: Tensor) -> Batch:
        x = samples.x(positions.to(device))
        first = x if raw_anchor else augment(x, recipe, generator)
        both = as_input(torch.cat((first, augment(x, recipe, generator))))
        if negatives == "batch":
            return (both,)
        if negatives == "pulled":
            against = pulled_negatives(positions, len(samples) - pulled, pulled, others)
        else:
            against = held_negatives(positions, len(samples), others)
        return both, as_input(samples.x(against.to(device)))

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
