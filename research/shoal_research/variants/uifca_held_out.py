"""UIFCA with held-out points, a variant of ours: a flow is kept as it was in the round of its best loss on them.

This is against over-fitting, which the paper leaves open: a flow gives the points that it was trained on, also wrong
ones, a higher likelihood than the right flow does. Clients judge the flows that they receive on points that no flow is
trained on. Within a cluster round the server keeps the best version of each flow so far: tensors `best` (K, p) and
`best_loss` (K,).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from shoal.core.setting import setting
from shoal.core.streams import Streams
from shoal.methods.contract.base import Client, Clients, Evaluation, Server, Update
from shoal.methods.contract.declared import FactForm, MessageForm
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.scores.clustering import crossed, table_scores
from shoal.methods.uifca.state import UIFCAState
from shoal.methods.uifca.uifca import UIFCA, PointClusters, UIFCASettings


@dataclass(frozen=True)
class HeldOutUIFCASettings(UIFCASettings):
    """Hyper-parameters of UIFCA with held-out points."""

    held_out: float = setting(
        0.2,
        "share of each client's points that no flow is trained on; each flow is kept as it was in the communication "
        "round of its best loss on these points; 0: train on all points",
        ge=0,
        lt=1,
    )


class HeldOutUIFCA(UIFCA):
    """UIFCA with held-out points as a method."""

    name = "uifca_held_out"
    title = "UIFCA with held-out points"
    about = "UIFCA that stops each flow by its loss on held-out points."
    Settings = HeldOutUIFCASettings
    settings: HeldOutUIFCASettings

    def declared(self, server: Server, client: int, samples: int) -> MessageForm:
        """Declare what UIFCA's clients send, and the losses of held-out points."""
        form = super().declared(server, client, samples)
        if UIFCAState.from_server(server).phase != "learn" or not self.settings.held_out:
            return form
        flows = len(server.model["flows"])
        largest = torch.finfo(torch.float32).max * max(1, samples)
        facts = {
            **form.facts,
            # The loss of a flow that has diverged is not finite: this is no fault of the client.
            "held_loss": FactForm(-largest, largest, length=flows, finite=False),
            "held_count": FactForm(0, samples, whole=True, length=flows),
        }
        return replace(form, facts=facts)

    def learn(self, message: Message, client: Client, assigned: PointClusters) -> Update:
        """Learn as UIFCA does from the other points, and judge the flows that were received on the held-out ones."""
        told = UIFCAState.from_facts(message.facts)
        positions = self.held_out(client, told.cluster_round)
        of_no_flow = assigned._replace(cluster=assigned.cluster.index_fill(0, positions, -1))
        update = replace(super().learn(message, client, of_no_flow), memory={"assignment": assigned.cluster})
        if not self.settings.held_out:
            return update
        restart = told.begins_cluster_round and not self.settings.warm_start
        flows = self.starts() if restart else message.tensors["flows"]
        losses = self.losses(flows, client.train.take(positions), client.streams)
        facts = {**update.message.facts, **held_out_losses(losses, assigned.cluster[positions])}
        return replace(update, message=replace(update.message, facts=facts))

    def held_out(self, client: Client, cluster_round: int) -> Tensor:
        """Return a share of a client's points, the same in every cluster round."""
        return held_out_positions(self.context.seed, client, self.settings.held_out)

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Average as UIFCA does, and keep the best flows on held-out points: a new cluster round begins from them."""
        state = UIFCAState.from_server(server)
        if not self.settings.held_out or not state.assigned:
            return super().aggregate(server, updates)
        sums = torch.zeros(2, len(server.model["flows"]), dtype=torch.float64)

        def heard() -> Iterator[Update]:
            for update in updates:
                facts = update.message.facts
                sums.add_(torch.tensor([facts["held_loss"], facts["held_count"]], dtype=torch.float64))
                yield update

        after = super().aggregate(server, heard())
        begins = state.begins_cluster_round
        judged = self.starts() if begins and not self.settings.warm_start else server.model["flows"]
        after = replace(after, state=keep_best(server.state, judged, sums, first=begins))
        if UIFCAState.from_server(after).cluster_round == state.cluster_round:
            return after
        return after.with_model({"flows": after.state["best"]})

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Return UIFCA's scores, and the purity of the held-out points."""
        return super().evaluate(server, clients, evaluation) | purity_held(self, server, clients)


def purity_held(method: HeldOutUIFCA, server: Server, clients: Clients) -> dict[str, float]:
    """Return `purity_held`, of the points that no flow of a state was trained on; nothing without labels or these."""
    state = UIFCAState.from_server(server)
    found = method.current_assignment(server, clients) if state.assigned and server.round else None
    if found is None or found.truth is None:
        return {}
    during = state.cluster_round - (1 if state.begins_cluster_round else 0)
    parts = []
    for client in clients:
        part = torch.zeros(len(client.train), dtype=torch.bool)
        part[method.held_out(client, during).cpu()] = True
        parts.append(part)
    held = torch.cat(parts)
    if not bool(held.any()):
        return {}
    return {"purity_held": table_scores(crossed(found.truth[held].numpy(), found.cluster[held].numpy()))["purity"]}


def held_out_positions(seed: int, client: Client, share: float) -> Tensor:
    """Return the positions of a share of a client's points: int64 (m,); they depend on seed and client alone."""
    device = client.train.index.device
    count = len(client.train)
    generator = Streams(seed, 0, client.id).torch("held out")
    return torch.randperm(count, generator=generator)[: int(share * count)].to(device)


def held_out_losses(losses: Tensor, clusters: Tensor) -> dict[str, Any]:
    """Judge each flow by a client's held-out points of its cluster.

    Args:
        losses: -log p of the held-out points under each flow, (m, K).
        clusters: the cluster of each, int64 (m,).

    Returns:
        For each flow k the summed -log p, in nats, of the points of cluster k, and their number.
    """
    of_cluster = losses.gather(1, clusters[:, None]).squeeze(1)
    flows = range(losses.shape[1])
    return {
        "held_loss": [float(of_cluster[clusters == k].sum()) for k in flows],
        "held_count": [int((clusters == k).sum()) for k in flows],
    }


def keep_best(kept: Tensors, judged: Tensor, held_out_sums: Tensor, *, first: bool) -> Tensors:
    """Return the best version of each flow in this cluster round so far.

    Args:
        kept: the server's tensors, with `best` and `best_loss` unless `first`.
        judged: the flows that the clients received and judged, (K, p).
        held_out_sums: summed held-out losses, and numbers of held-out points, of all clients: float64 (2, K).
        first: whether this is the first communication round of its cluster round.

    Returns:
        `best` (K, p) and `best_loss` float32 (K,), infinite where no client had a held-out point.
    """
    loss = (held_out_sums[0] / held_out_sums[1].clamp(min=1)).float()
    loss = torch.where(held_out_sums[1] > 0, loss, torch.inf)
    if first:
        return {"best": judged.clone(), "best_loss": loss}
    better = loss < kept["best_loss"]
    return {
        "best": torch.where(better[:, None], judged, kept["best"]),
        "best_loss": torch.where(better, loss, kept["best_loss"]),
    }
