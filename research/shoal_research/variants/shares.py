"""Clusters that are equally full over the federation, not in each client: a variant of ours of FedCC and FedPNP.

The entropy term of the cluster loss (Li et al. 2021, eq. 6) wants every batch spread evenly over all clusters. A client
that holds three classes of ten cuts them into ten clusters by it, every client into different ones, and the averaged
head agrees with none. Here the clients also send how full each cluster is with them, and the server sends the mean of
these. The entropy is then that of the whole federation: of the client's batch, weighted by its part of all samples, and
of that mean (which includes the client's own share of the round before), weighted by the rest. A client keeps nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from shoal.methods.contract.base import Client, Federation, Server, Update
from shoal.methods.contract.declared import MessageForm
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.fedpnp.cluster_method import ClusterMethod
from shoal.methods.fedpnp.fedcc import FedCC
from shoal.methods.fedpnp.fedpnp import FedPNP
from shoal.methods.losses.contrastive import contrastive, entropy
from shoal.methods.training.local_steps import TakenSteps
from shoal.methods.training.model_stack import StepResult

SHARES = "shares"
"""The tensor (c,) of how full each cluster is: with one client in its message, with all in the server's state."""
SAMPLES = "samples"
"""The fact of how many training samples all clients have."""
OTHERS = "others"
"""The tensor (c,) of how full each cluster is with all clients, among a client's `extra`."""
PART = "part"
"""The tensor () of the client's part of all samples, among its `extra`."""

ROUNDING = 1e-5
"""A mean of shares may be above 1 by this much."""


class EvenOverFederation(ClusterMethod):
    """A cluster method whose clients send how full each cluster is, and train for even ones over the federation."""

    def init_server(self, federation: Federation) -> Server:
        """Return the initial weights, and even shares of the clusters."""
        server = super().init_server(federation)
        shares = {SHARES: even_shares(self.context.clusters)}
        return replace(server, model={**server.model, **shares}, facts={SAMPLES: sum(federation.sizes)})

    def loaded(self, tensors: Tensors) -> Any:
        """Return a network with weights that were broadcast, or that the server has."""
        return super().loaded({name: tensor for name, tensor in tensors.items() if name != SHARES})

    def prepare(self, message: Message, client: Client) -> Tensors:
        """Return the federation's shares as the steps use them."""
        return {**super().prepare(message, client), **federation_shares(message, client, self.context.device)}

    def cluster_loss(self, y_a: Tensor, y_b: Tensor, tau: float, extra: Tensors) -> StepResult:
        """Return the cluster-level loss of soft assignments (n, c), and the metrics that carry the client's shares."""
        others = extra[OTHERS]
        part = extra[PART]
        loss = contrastive(y_a.T, y_b.T, tau)
        loss = loss - entropy_among_others(y_a, others, part) - entropy_among_others(y_b, others, part)
        return loss, share_metrics(y_a, y_b)

    def trained(self, network: nn.Module, client: Client, taken: TakenSteps) -> Update:
        """Return a client's update after its steps, with its shares."""
        update = super().trained(network, client, taken)
        shares, metrics = take_shares(update.metrics, self.context.clusters)
        message = replace(update.message, tensors={**update.message.tensors, SHARES: shares})
        return replace(update, message=message, metrics=metrics)

    def declared(self, server: Server, client: int, samples: int) -> MessageForm:
        """Return the form of the model's tensors; shares of clusters lie between 0 and 1."""
        form = super().declared(server, client, samples)
        assert form is not None
        shares = replace(form.tensors[SHARES], minimum=0.0, maximum=1.0 + ROUNDING)
        return replace(form, tensors={**form.tensors, SHARES: shares})


class EvenFedCC(EvenOverFederation, FedCC):
    """FedCC with clusters that are even over the federation."""

    name = "fedcc_federation"
    title = "FedCC, even over the federation"
    about = "FedCC that asks for evenly full clusters over all clients."


class EvenFedPNP(EvenOverFederation, FedPNP):
    """FedPNP with clusters that are even over the federation."""

    name = "fedpnp_federation"
    title = "FedPNP, even over the federation"
    about = "FedPNP that asks for evenly full clusters over all clients."


def entropy_among_others(y: Tensor, others: Tensor, part: Tensor) -> Tensor:
    """Return the entropy (nats) of the mean assignment of y (n, c) and others' shares (c,) together, over `part`.

    y is the part (0, 1] of the whole, the others are the rest. The division by the part makes the gradient on y as
    strong as that of its own entropy: at part 1 it is `assignment_entropy`. The value grows with 1 / part, the gradient
    does not.
    """
    return entropy(part * y.mean(0) + (1 - part) * others) / part


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
