"""Planted adversaries: the last few clients of a federation send updates that are not what they learned."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from core.streams import Streams

Attack = Literal["random", "flip", "scale", "mixed"]
KINDS: tuple[Attack, ...] = ("random", "flip", "scale")


def attack_of(client: int, clients: int, adversaries: int, attack: Attack) -> Attack | None:
    """What a client does to its update: None for the honest; `mixed` gives the adversaries one kind after another."""
    place = client - (clients - adversaries)
    if place < 0:
        return None
    return KINDS[place % len(KINDS)] if attack == "mixed" else attack


def corrupt(update: Tensor, attack: Attack, scale: float, streams: Streams) -> Tensor:
    """An adversary's update (p,) instead of the honest one.

    Args:
        update: the honest update.
        attack: `random`: Gaussian noise of the same norm; `flip`: its negative; `scale`: `scale` times it.
        scale: factor of `scale`.
        streams: of the client in this round.
    """
    if attack == "random":
        noise = torch.randn(update.shape, generator=streams.torch("adversary"))
        return (noise * (update.norm() / noise.norm())).to(update)
    return -update if attack == "flip" else update * scale
