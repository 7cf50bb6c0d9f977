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
from shoal.methods.contract.base import Client, Clients, Server
from shoal.methods.contract.message import Message
from shoal.methods.uifca.quality import CurrentAssignment
from shoal.methods.uifca.state import UIFCAState
from shoal.methods.uifca.uifca import PointClusters, lowest
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
    evaluation_reads_memory = True
    settings: FoldedUIFCASettings

    def __init__(self, settings: FoldedUIFCASettings, context: Any) -> None:
        super().__init__(settings, context)
        self.settled_after = settings.folds  # each part of the points has had its turn

    def held_out(self, client: Client, cluster_round: int) -> Tensor:
        """Return the positions of the part that a cluster round holds out."""
        part = fold(self.context.seed, client.id, len(client.train), self.settings.folds, cluster_round)
        return part.to(client.train.index.device)

    def assign(self, message: Message, client: Client) -> PointClusters:
        """Assign again, where a cluster round begins, only the points that the last one held out."""
        told = UIFCAState.from_facts(message.facts)
        before = client.memory.get("assignment")
        if before is None or not told.begins_cluster_round:
            return super().assign(message, client)
        free = self.held_out(client, told.cluster_round - 1)
        after = before.clone()
        after[free] = lowest(self.losses(message.tensors["flows"], client.train.take(free), client.streams))
        return PointClusters(after, int((after != before).sum()))

    def current_assignment(self, server: Server, clients: Clients) -> CurrentAssignment:
        """Return the assignment that clients would find if a cluster round began now, of the part that is held out."""
        state = UIFCAState.from_server(server)
        # The cluster round of these flows: a finished one has already been counted.
        during = state.cluster_round - (1 if state.begins_cluster_round else 0)
        clusters = []
        losses = []
        for client in clients:
            rows = self.losses(server.model["flows"], client.train, client.streams)
            free = self.held_out(client, during)
            cluster = client.memory.get("assignment", lowest(rows)).clone()
            cluster[free] = lowest(rows)[free]
            clusters.append(cluster.cpu())
            losses.append(rows.gather(1, cluster[:, None]).squeeze(1).cpu())
        truth = super().current_assignment(server, clients).truth
        return CurrentAssignment(torch.cat(clusters), truth, torch.cat(losses))


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
