"""The embeddings that importance is computed from: of a sender's candidates and of its neighbours' reserves.

Reserves are embedded as they are (anchors) and augmented (positives), since a candidate is judged as their negative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.data.views.view import Samples

Embed = Callable[[Samples, torch.Generator | None], Tensor]
"""A function to unit embeddings (n, e) of samples, or of their augmentations where it is given a generator."""


class Embedded(NamedTuple):
    """For one receiver: embeddings of the candidates (n, e), of its reserve and of augmentations of that (r, e)."""

    candidates: Tensor
    anchors: Tensor
    positives: Tensor


def embed_by_one_model(
    embed: Embed, candidates: Samples, reserves: Mapping[int, Samples], generator: torch.Generator
) -> dict[int, Embedded]:
    """Embed candidates and all reserves by the last global model, in one pass; return the parts of each neighbour.

    Args:
        embed: embeds by that model.
        candidates: the sender's.
        reserves: the reserve that each neighbour pushed.
        generator: draws the augmentations.
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
    anchors = embed(every, None).split(sizes)
    positives = embed(every, generator).split(sizes)
    parts = zip(reserves, anchors, positives, strict=True)
    return {neighbour: Embedded(x, anchor, positive) for neighbour, anchor, positive in parts}


def embed_by_each_model(
    model_of: Callable[[int], Embed],
    candidates: Samples,
    reserves: Mapping[int, Samples],
    generator: torch.Generator,
) -> dict[int, Embedded]:
    """Embed for each neighbour by its own model: the ablation in which the receiver's local model selects.

    Args:
        model_of: returns what embeds by a neighbour's model.
        candidates, reserves, generator: as for one model.
    """
    embedded = {}
    for neighbour, reserve in reserves.items():
        embed = model_of(neighbour)
        x = embed(candidates, None)
        embedded[neighbour] = Embedded(x, x[:0], x[:0])
        if len(reserve):
            embedded[neighbour] = Embedded(x, embed(reserve, None), embed(reserve, generator))
    return embedded
