"""UIFCA with folds, a variant of ours: a cluster round trains on some points, and assigns only the others.

This is against over-fitting, which the paper leaves open: a flow gives the points that it was trained on, also wrong
ones, a higher likelihood than the right flow does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shoal.core.setting import setting
from shoal.core.streams import Streams
from shoal.methods.contract.base import Client
from shoal_research.variants.uifca_held_out import HeldOutUIFCA, HeldOutUIFCASettings


@dataclass(frozen=True)
class FoldedUIFCASettings(HeldOutUIFCASettings):
    """Hyper-parameters of UIFCA with folds."""

    held_out: float = setting(
        0.0, "keep each flow as it was in the round of its best loss on the part that is held out; 0: as it is last"
    )
    folds: int = setting(
        2,
        "number of parts of each client's points; every cluster round holds one part in turn out from training, and "
        "assigns only its points",
        ge=2,
    )


class FoldedUIFCA(HeldOutUIFCA):
    """UIFCA with folds as a method; state and messages are those of UIFCA."""

    name = "uifca_folds"
    title = "UIFCA with folds"
    about = "UIFCA that assigns the points which the last flows were not trained on."
    Settings = FoldedUIFCASettings
    settings: FoldedUIFCASettings

    def __init__(self, settings: FoldedUIFCASettings, context: Any) -> None:
        super().__init__(settings, context)
        self.settled_after = settings.folds  # each part of the points has had its turn

    def held_out(self, client: Client, cluster_round: int) -> Tensor:
        """Return the positions of the part that a cluster round holds out."""
        part = fold(self.context.seed, client.id, len(client.train), self.settings.folds, cluster_round)
        return part.to(client.train.index.device)

    def reassigned(self, client: Client, cluster_round: int) -> Tensor:
        """Return the positions of the part that the cluster round held out."""
        return self.held_out(client, cluster_round)


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
