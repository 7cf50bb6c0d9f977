"""Which of a client's points no flow is trained on in a cluster round, and which are assigned anew after it.

Against over-fitting (the paper leaves it open): a flow gives points that it was trained on, also wrong ones, a higher
likelihood than the flow they belong to. Two ways, by the settings: `folds`, and `stop: validation`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.core.streams import Streams
from shoal.methods.contract.base import Client


@dataclass(frozen=True)
class HeldOut:
    """The held-out points of every client and cluster round; the same whoever asks, in whatever order.

    Attributes:
        seed: of the run.
        folds: so many parts of a client's points are held out in turn; 1: no such parts.
        share: without folds, the share of a client's points that is held out in every cluster round; 0: none.
    """

    seed: int
    folds: int
    share: float

    def positions(self, client: Client, cluster_round: int) -> Tensor:
        """Positions held out in a cluster round (0-based): int64 (m,) into the client's points; ascending by folds."""
        count, device = len(client.train), client.train.index.device
        if self.folds > 1:
            return fold(self.seed, client.id, count, self.folds, cluster_round).to(device)
        if not self.share:
            return torch.arange(0, device=device)
        generator = Streams(self.seed, 0, client.id).torch("held out")
        return torch.randperm(count, generator=generator)[: int(self.share * count)].to(device)

    def reassigned(self, client: Client, cluster_round: int) -> Tensor:
        """Positions assigned anew after a cluster round: with folds only those no flow was trained on, else all."""
        if self.folds > 1:
            return self.positions(client, cluster_round)
        return torch.arange(len(client.train), device=client.train.index.device)


def fold(seed: int, client: int, count: int, folds: int, cluster_round: int) -> Tensor:
    """The part of a client's points whose turn it is: ascending int64 positions.

    Args:
        seed: of the run.
        client: its number.
        count: how many points it has.
        folds: parts.
        cluster_round: 0-based.
    """
    order = torch.randperm(count, generator=Streams(seed, 0, client).torch("folds"))
    return torch.nonzero(order % folds == cluster_round % folds).squeeze(1)
