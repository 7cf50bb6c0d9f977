"""Clusters that are equally full over the federation, not in each client: a variant of ours of FedCC and FedPNP.

The entropy term of the cluster loss (Li et al. 2021, eq. 6) wants every batch spread evenly over all clusters. A client
that holds three classes of ten cuts them into ten clusters by it, every client into different ones, and the averaged
head agrees with none. Here the clients also send how full each cluster is with them, and the server sends the mean of
these. The entropy is then that of the whole federation: of the client's batch, weighted by its part of all samples, and
of that mean (which includes the client's own share of the round before), weighted by the rest. A client keeps nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from shoal.methods.contract.base import Client
from shoal.methods.contract.message import Message

EntropyOver = Literal["client", "federation"]
ENTROPY_OVER_HELP = (
    "whose samples the entropy term spreads evenly over the clusters: those of the client's batch, as in the papers "
    "(client), or those of all clients, each of which sends how full the clusters are with it (federation, ours)"
)
SHARES = "shares"
"""The tensor (c,) of how full each cluster is: with one client in its message, with all in the server's state."""
SAMPLES = "samples"
"""The fact of how many training samples all clients have."""
OTHERS = "others"
"""The tensor (c,) of how full each cluster is with all clients, among a client's `extra`."""
PART = "part"
"""The tensor () of the client's part of all samples, among its `extra`."""


def even_shares(clusters: int) -> Tensor:
    """Return equal shares (c,): the state before any client has answered."""
    return torch.full((clusters,), 1.0 / clusters)


def federation_shares(message: Message, client: Client, device: torch.device) -> dict[str, Tensor]:
    """Return what a client's loss uses: the shares (c,) that were broadcast, and its own part of all samples ()."""
    shares = message.tensors[SHARES].to(device).clamp_min(0)
    part = min(1.0, len(client.train) / float(message.facts[SAMPLES]))
    return {OTHERS: shares / shares.sum().clamp_min(1e-8), PART: torch.full((), part, device=device)}


def share_metrics(y_a: Tensor, y_b: Tensor) -> dict[str, Tensor]:
    """Return how full each cluster is with a batch's two views (n, c), as one metric a cluster, averaged over steps."""
    return {f"{SHARES}/{k}": share for k, share in enumerate(((y_a + y_b) / 2).detach().mean(0).unbind())}


def take_shares(metrics: Mapping[str, float], clusters: int) -> tuple[Tensor, dict[str, float]]:
    """Return the shares (c,) of a client's round, and its metrics without them."""
    shares = torch.tensor([metrics[f"{SHARES}/{k}"] for k in range(clusters)], dtype=torch.float32)
    return shares, {name: value for name, value in metrics.items() if not name.startswith(f"{SHARES}/")}
