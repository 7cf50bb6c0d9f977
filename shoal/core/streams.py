"""Every random draw comes from (seed, purpose, round, client), and from nothing else.

A stream's seed is a hash of those four, so it does not depend on which worker asks, in which order, or on what
was drawn before.

>>> stream_seed(0, "batches", round=3, client=1) == stream_seed(0, "batches", round=3, client=1)
True
>>> stream_seed(0, "batches", round=3, client=1) == stream_seed(0, "batches", round=3, client=2)
False
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # who takes in data needs no torch, whose libraries take hundreds of megabytes
    import torch

SERVER = -1
"""The `client` of a draw that belongs to the server or to nobody in particular."""


def stream_seed(seed: int, purpose: str, *, round: int = 0, client: int = SERVER) -> int:
    """Return a 63-bit seed for one purpose in one round of one client."""
    key = f"{seed}|{purpose}|{round}|{client}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 1


@dataclass(frozen=True)
class Streams:
    """The random streams of one client (or the server) in one round."""

    seed: int
    round: int = 0
    client: int = SERVER

    def torch(self, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
        """Return a fresh torch generator on `device`; asking twice gives the same draws twice."""
        import torch

        generator = torch.Generator(device=device)
        generator.manual_seed(stream_seed(self.seed, purpose, round=self.round, client=self.client))
        return generator

    def numpy(self, purpose: str) -> np.random.Generator:
        """Return a fresh numpy generator; asking twice gives the same draws twice."""
        return np.random.default_rng(stream_seed(self.seed, purpose, round=self.round, client=self.client))
