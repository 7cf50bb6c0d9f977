"""Clusters that are equally full over the federation, not in each client: a variant of ours of FedCC and FedPNP.

The entropy term of the cluster loss (Li et al. 2021, eq. 6) wants every batch spread evenly over all clusters. A client
that holds three classes of ten cuts them into ten clusters by it, each client others, and the averaged head agrees with
none. Here the clients also send how full each cluster is with them, the server sends the mean of these, and the entropy
is that of the whole: of the client's batch by its part of all samples, and of that mean, the client's own share of the
round before in it, by the rest. A client keeps nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from shoal.methods.contract.base import Client
from shoal.methods.contract.message import Message

Over = Literal["client", "federation"]
ABOUT = (
    "whose samples the entropy term spreads evenly over the clusters: client, those of a batch, as the papers have it; "
    "federation, those of all clients, of which each sends how full the clusters are with it (ours)"
)
SHARES = "shares"
"""The tensor (c,) of how full each cluster is: of one client in its message, of all in the server's state."""
SAMPLES = "samples"
"""The fact of how many training samples all clients have."""
OTHERS, PART = "others", "part"


def even(clusters: int) -> Tensor:
    """Shares (c,) before anything is known of them."""
    return torch.full((clusters,), 1.0 / clusters)


def of_the_federation(message: Message, client: Client, device: torch.device) -> dict[str, Tensor]:
    """What a client's loss uses: the shares (c,) that were broadcast, and its own part of all samples ()."""
    shares = message.tensors[SHARES].to(device).clamp_min(0)
    part = min(1.0, len(client.train) / float(message.facts[SAMPLES]))
    return {OTHERS: shares / shares.sum().clamp_min(1e-8), PART: torch.tensor(part, device=device)}


def as_metrics(y_a: Tensor, y_b: Tensor) -> dict[str, Tensor]:
    """How full each cluster is with a batch's two views (n, c), a number each: their means over a round's steps."""
    return {f"{SHARES}/{k}": share for k, share in enumerate(((y_a + y_b) / 2).detach().mean(0).unbind())}


def from_metrics(means: Mapping[str, float], clusters: int) -> tuple[Tensor, dict[str, float]]:
    """The shares (c,) of a client's round, and its metrics without them."""
    shares = torch.tensor([means[f"{SHARES}/{k}"] for k in range(clusters)], dtype=torch.float32)
    return shares, {name: value for name, value in means.items() if not name.startswith(f"{SHARES}/")}
