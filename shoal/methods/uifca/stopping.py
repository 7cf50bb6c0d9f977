"""`held_out`: every flow is kept as it was in the communication round of its best loss on held-out points.

This is against over-fitting, which the paper leaves open: a flow gives the points that it was trained on, also wrong
ones, a higher likelihood than the right flow does. Clients judge the flows that they receive on points that no flow is
trained on. Within a cluster round the server keeps
the best version of each flow so far: tensors `best` (K, p) and `best_loss` (K,).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.core.streams import Streams
from shoal.methods.contract.base import Client
from shoal.methods.contract.message import Tensors


@dataclass(frozen=True)
class HeldOutLosses:
    """For each flow k the summed -log p, in nats, of the held-out points of cluster k, and their number."""

    loss: tuple[float, ...] = ()
    count: tuple[int, ...] = ()


def held_out_positions(seed: int, client: Client, share: float) -> Tensor:
    """Return the positions of a share of a client's points: int64 (m,); they depend on seed and client alone."""
    device = client.train.index.device
    if not share:
        return torch.arange(0, device=device)
    count = len(client.train)
    generator = Streams(seed, 0, client.id).torch("held out")
    return torch.randperm(count, generator=generator)[: int(share * count)].to(device)


def held_out_losses(losses: Tensor, clusters: Tensor) -> HeldOutLosses:
    """Judge each flow by a client's held-out points of its cluster.

    Args:
        losses: -log p of the held-out points under each flow, (m, K).
        clusters: the cluster of each, int64 (m,).
    """
    own = losses.gather(1, clusters[:, None]).squeeze(1)
    flows = range(losses.shape[1])
    return HeldOutLosses(
        tuple(float(own[clusters == k].sum()) for k in flows), tuple(int((clusters == k).sum()) for k in flows)
    )


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
