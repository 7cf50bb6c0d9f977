"""FedPNP: federated contrastive clustering with a past negatives pool (Miao and Koyuncu 2024).

A round: the server sends encoder, instance head and cluster head; each client trains them for some epochs on two views
of its images; the server averages by number of samples. What is new is which other samples an anchor is pushed away
from: only those whose *past* soft label, given by the client's own weights at the end of its previous round, differs
from the anchor's.

Where this departs from the paper's print: docs/methods.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from core.setting import setting
from methods.base import Client, Message, MethodError, Tensors, Update
from methods.fedpnp.cluster_method import ClusterMethod
from methods.losses.contrastive import cluster_contrastive, contrastive
from methods.training.local import load, weights
from methods.training.model_stack import Batch, LocalModel, StepResult
from methods.training.steps import LocalSteps, TakenSteps
from models.heads import ClusterNet

PAST = "past"
"""The companion of a client that has taken part before: its own network as its previous round left it."""
Similarity = Literal["gaussian", "dot", "literal"]


@dataclass(frozen=True)
class FedPNPSettings:
    """Hyper-parameters of FedPNP; defaults are the paper's."""

    mu: float = setting(
        0.999,
        "threshold of the past negatives pool: samples whose past soft labels are at least this similar are no "
        "negatives of each other",
        gt=0,
    )
    similarity: Similarity = setting(
        "gaussian",
        "similarity of past soft labels u and v: gaussian exp(cos(u, v) - 1), dot u.v, or literal exp(u.v) as printed",
    )
    decoupled: bool = setting(
        False, "leave the positive pair out of the denominator of the instance-level loss, as the paper prints it"
    )
    tau_instance: float = setting(0.5, "temperature of the instance-level contrastive loss", gt=0)
    tau_cluster: float = setting(1.0, "temperature of the cluster-level contrastive loss", gt=0)
    alpha_first: float = setting(2.0, "weight of the cluster-level loss in round 1", ge=0)
    alpha: float = setting(0.1, "weight of the cluster-level loss from round 2 on", ge=0)


def similarity(u: Tensor, v: Tensor, kind: Similarity) -> Tensor:
    """Similarity of soft labels u (n, c) and v (m, c), as an (n, m) matrix.

    `gaussian` is exp(cos(u, v) - 1), which on unit vectors is exp(-|u - v|^2 / 2).
    """
    if kind == "gaussian":
        u, v = (t / t.norm(dim=1, keepdim=True).clamp(min=1e-12) for t in (u, v))
        return (u @ v.T - 1).exp()
    return u @ v.T if kind == "dot" else (u @ v.T).exp()


def past_negatives(y_a: Tensor, y_b: Tensor, mu: float, kind: Similarity) -> tuple[Tensor, Tensor]:
    """The past negatives pools (eq. 3): masks (n, n) for the anchors of view a and of view b.

    Row i of the first marks every j != i with s(y_i^a, y_j^t) < mu for both views t.

    Raises:
        MethodError: `literal` similarity with mu <= 1: exp(u.v) of probability vectors is never below 1, so that
            every pool is empty.
    """
    if kind == "literal" and mu <= 1:
        raise MethodError(
            f"method.similarity literal with method.mu {mu}: exp(u.v) >= 1 for soft labels, so every negatives pool is "
            "empty; use gaussian (the default), or a mu between 1 and e"
        )
    others = ~torch.eye(len(y_a), dtype=torch.bool, device=y_a.device)
    aa, ab, bb = similarity(y_a, y_a, kind), similarity(y_a, y_b, kind), similarity(y_b, y_b, kind)
    return others & (aa < mu) & (ab < mu), others & (bb < mu) & (mu > ab.T)


class FedPNP(ClusterMethod):
    """FedPNP as a method: server state is one `ClusterNet`, private memory the client's own past weights."""

    name = "fedpnp"
    Settings = FedPNPSettings
    settings: FedPNPSettings
    loss_falls = False  # alpha and the pools are others from round to round

    def __init__(self, settings: FedPNPSettings, context: Any) -> None:
        super().__init__(settings, context)
        if settings.similarity == "literal":
            probe = torch.eye(2)
            past_negatives(probe, probe, settings.mu, "literal")

    def facts(self, round: int) -> dict[str, Any]:
        """Alpha of the round (section 3.1 of the paper)."""
        return {"alpha": self.settings.alpha_first if round == 1 else self.settings.alpha}

    def local_steps(self, message: Message, client: Client) -> LocalSteps:
        """Local epochs from the broadcast weights, with the client's past model beside them."""
        network = self.network()
        load(network, message.tensors)
        past = self._past(client.memory)

        def finish(taken: TakenSteps) -> Update:
            trained = weights(network)
            # The instance head of the past model is never asked.
            memory = {name: t for name, t in trained.items() if not name.startswith("instance.")}
            return Update(Message(trained, {"n": len(client.train)}), memory=memory, metrics=taken.metrics)

        companions = {} if past is None else {PAST: past}
        alpha = torch.tensor(float(message.facts["alpha"]), device=self.context.device)
        return self.view_steps(client, network, finish, companions=companions, extra={"alpha": alpha})

    def step_loss(self, model: LocalModel, parameters: Tensors, batch: Batch, extra: Tensors) -> StepResult:
        """L = L_instance + alpha L_cluster (eq. 8)."""
        s = self.settings
        with self.context.autocast():
            now = model(*batch)
            # Round 1 has no past: the current soft labels stand in.
            labels = model.ask(PAST, *batch).y if PAST in model.companions else now.y.detach()
        z_a, z_b = now.z.chunk(2)
        y_a, y_b = now.y.chunk(2)
        past_a, past_b = labels.chunk(2)
        pools = past_negatives(past_a, past_b, s.mu, s.similarity)
        instance = contrastive(z_a, z_b, s.tau_instance, pools, decoupled=s.decoupled)
        cluster = cluster_contrastive(y_a, y_b, s.tau_cluster)
        n = len(y_a)
        return instance + extra["alpha"] * cluster, {
            "loss_instance": instance,
            "loss_cluster": cluster,
            "pool_dropped": 1 - (pools[0].sum() + pools[1].sum()) / (2 * n * (n - 1)),
            "confidence": labels.max(1).values.mean(),
        }

    def _past(self, memory: Tensors) -> ClusterNet | None:
        if not memory:
            return None
        past = self.network()
        past.load_state_dict({**past.state_dict(), **memory})
        return past.eval().requires_grad_(False)
