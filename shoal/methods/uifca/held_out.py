"""Held-out points of a client: no flow is trained on them in a cluster round.

This is against over-fitting, which the paper leaves open: a flow gives the points that it was trained on, also wrong
ones, a higher likelihood than the right flow does. The settings `folds` and `held_out` choose the points.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.core.streams import Streams
from shoal.methods.contract.base import Client


@dataclass(frozen=True)
class HeldOut:
    """The held-out points of every client and cluster round; they depend on the seed, the client and the round alone.

    Attributes:
        seed: of the run.
        folds: number of parts of a client's points that are held out in turn; 1: no parts.
        share: without folds, the share of a client's points that is held out in every cluster round; 0: none.
    """

    seed: int
    folds: int
    share: float

    def positions(self, client: Client, cluster_round: int) -> Tensor:
        """Return the held-out positions among a client's points in a cluster round (0-based): int64 (m,)."""
        count = len(client.train)
        device = client.train.index.device
        if self.folds > 1:
            return fold(self.seed, client.id, count, self.folds, cluster_round).to(device)
        if not self.share:
            return torch.arange(0, device=device)
        generator = Streams(self.seed, 0, client.id).torch("held out")
        return torch.randperm(count, generator=generator)[: int(self.share * count)].to(device)

    def reassigned(self, client: Client, cluster_round: int) -> Tensor:
        """Return the positions that are assigned again after a cluster round: held-out ones with folds, else all."""
        if self.folds > 1:
            return self.positions(client, cluster_round)
        return torch.arange(len(client.train), device=client.train.index.device)


def fold(seed: int, client: int, count: int, folds: int, cluster_round: int) -> Tensor:
    """Return the part of a client's points that a cluster round holds out: ascending int64 positions.

    Args:
        seed: of the run.
        client: its number.
        count: number of its points.
        folds: number of parts.
        cluster_round: 0-based.
    """
    order = torch.randperm(count, generator=Streams(seed, 0, client).torch("folds"))
    return torch.nonzero(order % folds == cluster_round % folds).squeeze(1)
