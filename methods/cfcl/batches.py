"""What the local steps of a CF-CL device are taken on: batches of its own samples and of those it has pulled."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from core.streams import Streams
from data.augment import Recipe, augment
from data.view import Samples
from methods.cfcl.memory import drawn_negatives
from methods.training.local import as_input
from methods.training.model_stack import Batch


def batch_positions(count: int, size: int, steps: int, streams: Streams) -> Iterator[Tensor]:
    """For each step min(size, count) of the positions 0 to count - 1, without repetition."""
    order = streams.torch("batches")
    return (torch.randperm(count, generator=order)[:size] for _ in range(steps))


def batch_inputs(
    samples: Samples, pulled: int, recipe: Recipe, streams: Streams, raw_anchor: bool, against_pulled: bool
) -> Callable[[Tensor], Batch]:
    """A function from a batch's positions to first views, then second views, (2n, ...), and negatives (n, ...).

    Args:
        samples: the device's own, then those it has pulled.
        pulled: how many were pulled.
        recipe: of the views.
        streams: the device's.
        raw_anchor: the first view of a sample is the sample itself.
        against_pulled: negatives are samples that were pulled; otherwise none are given.
    """
    device = samples.index.device
    generator = streams.torch("views", device)
    others = streams.torch("negatives")

    def inputs(positions: Tensor) -> Batch:
        x = samples.x(positions.to(device))
        first = x if raw_anchor else augment(x, recipe, generator)
        both = as_input(torch.cat((first, augment(x, recipe, generator))))
        if not against_pulled:
            return (both,)
        against = drawn_negatives(positions, len(samples) - pulled, pulled, others)
        return both, as_input(samples.x(against.to(device)))

    return inputs
