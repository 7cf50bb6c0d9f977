"""What importance is computed from: embeddings of a transmitter's candidates and of its neighbours' reserves.

Reserves are embedded as they are (anchors) and augmented (positives), since a candidate is judged as their negative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.data.view import Samples

Embed = Callable[[Samples, torch.Generator | None], Tensor]
"""Unit embeddings (n, e) of samples; of their augmentations where a generator is given."""


class Embedded(NamedTuple):
    """For one receiver: embeddings of the candidates (n, e), of its reserve and of augmentations of that (r, e)."""

    candidates: Tensor
    anchors: Tensor
    positives: Tensor


def embed_by_one_model(
    embed: Embed, candidates: Samples, reserves: Mapping[int, Samples], generator: torch.Generator
) -> dict[int, Embedded]:
    """For each neighbour, all by one model and in one pass: selection by the last global model.

    Args:
        embed: by that model.
        candidates: the transmitter's.
        reserves: by neighbour, what it pushed.
        generator: of the augmentations.
    """
    x = embed(candidates, None)
    if not any(map(len, reserves.values())):
        return dict.fromkeys(reserves, Embedded(x, x[:0], x[:0]))
    every = replace(
        candidates,
        index=torch.cat([reserve.index for reserve in reserves.values()]),
        transformation=torch.cat([reserve.transformation for reserve in reserves.values()]),
    )
    sizes = [len(reserve) for reserve in reserves.values()]
    anchors, positives = embed(every, None).split(sizes), embed(every, generator).split(sizes)
    return {near: Embedded(x, a, b) for near, a, b in zip(reserves, anchors, positives, strict=True)}


def embed_by_each_model(
    model_of: Callable[[int], Embed],
    candidates: Samples,
    reserves: Mapping[int, Samples],
    generator: torch.Generator,
) -> dict[int, Embedded]:
    """For each neighbour by its own model: the ablation in which the receiver's local model selects.

    Args:
        model_of: a neighbour's model.
        candidates, reserves, generator: as for one model.
    """
    found = {}
    for near, reserve in reserves.items():
        embed = model_of(near)
        x = embed(candidates, None)
        found[near] = Embedded(x, x[:0], x[:0])
        if len(reserve):
            found[near] = Embedded(x, embed(reserve, None), embed(reserve, generator))
    return found
