"""Planted adversaries: the last few clients of a federation send updates that are not what they learned."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from shoal.core.streams import Streams

Attack = Literal["random", "flip", "scale", "zeros", "collude", "labels", "mixed"]
ATTACKS = (
    "what adversaries send: random, noise as long as their update; flip, its negative; scale, attack_scale times it; "
    "zeros, a model of zeros; collude, all of them the same noise in all rounds; labels, what they learned from labels "
    "in reverse order; or mixed, one of the first three each"
)
"""What the setting `attack` means."""
KINDS: tuple[Attack, ...] = ("random", "flip", "scale")
"""Those of `mixed`, one after another."""


def attack_of(client: int, clients: int, adversaries: int, attack: Attack) -> Attack | None:
    """What a client does to its update: None for the honest; `mixed` gives the adversaries one kind after another."""
    place = client - (clients - adversaries)
    if place < 0:
        return None
    return KINDS[place % len(KINDS)] if attack == "mixed" else attack


def corrupt(update: Tensor, attack: Attack, scale: float, streams: Streams, start: Tensor) -> Tensor:
    """An adversary's update (p,) instead of the honest one.

    Args:
        update: the honest update.
        attack: `random`: Gaussian noise of the same norm; `flip`: its negative; `scale`: `scale` times it; `zeros`:
            what makes the model 0; `collude`: as `random`, the same noise for all adversaries and rounds; `labels`: as
            it is, since the client was trained on false labels.
        scale: factor of `scale`.
        streams: of the client in this round.
        start: the model that the client began from (p,).
    """
    if attack in ("random", "collude"):
        shared = Streams(streams.seed).torch("colluding adversaries")
        generator = streams.torch("adversary") if attack == "random" else shared
        noise = torch.randn(update.shape, generator=generator).to(update)
        result: Tensor = noise * (update.norm() / noise.norm())
        return result
    if attack == "zeros":
        return -start
    if attack == "labels":
        return update
    return -update if attack == "flip" else update * scale
