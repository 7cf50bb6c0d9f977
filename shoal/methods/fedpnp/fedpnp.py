"""FedPNP: federated contrastive clustering with a past negatives pool (Miao and Koyuncu 2024).

A round: the server sends encoder, instance head and cluster head; each client trains them for some epochs on two views
of its images; the server averages by number of samples. The new idea is the choice of the samples that an anchor is
pushed away from: only those whose *past* soft label, given by the client's own weights at the end of its previous
round, differs from the anchor's.

docs/methods.md lists where this departs from the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from shoal.core.setting import setting
from shoal.methods.contract.base import Client, Update
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.contract.questions import Question
from shoal.methods.fedpnp.cluster_method import ClusterMethod
from shoal.methods.fedpnp.pool import MIN_SIMILARITY, past_look_alikes
from shoal.methods.losses.contrastive import left_out_share, view_contrast
from shoal.methods.training.batch_statistics import Party, fits_in_one_pass, settle, settle_in_one_pass
from shoal.methods.training.local import as_low_input, load
from shoal.methods.training.local_steps import LocalSteps, Preparation, TakenSteps
from shoal.methods.training.model_stack import Batch, LocalModel, StepResult
from shoal.models.heads import ClusterNet

PAST = "past"
"""The companion of a client that has taken part before: its own network as its previous round left it."""
SETTLING_SAMPLES = 256
"""At most this many of a client's samples, a seeded draw, give the past model its BatchNorm statistics, in one pass."""


@dataclass(frozen=True)
class FedPNPSettings:
    """Hyper-parameters of FedPNP; defaults are the paper's."""

    mu: float = setting(
        0.999,
        "threshold of the past negatives pool: samples whose past soft labels u and v have a similarity "
        "exp(cos(u, v) - 1) of at least this are no negatives of each other",
        gt=MIN_SIMILARITY,
    )
    alpha_first: float = setting(2.0, "weight of the cluster-level loss in round 1", ge=0)
    alpha: float = setting(0.1, "weight of the cluster-level loss from round 2 on", ge=0)


class FedPNP(ClusterMethod):
    """FedPNP as a method: server state is one `ClusterNet`, private memory the client's own past weights."""

    name = "fedpnp"
    title = "FedPNP"
    question = Question.IMAGES
    about = "FedCC that leaves likely members of the same cluster out of the negatives."
    Settings = FedPNPSettings
    settings: FedPNPSettings
    loss_note = (
        "Where method.alpha_first is not method.alpha, the loss jumps after round 1 by design: the cluster-level loss, "
        "which is mostly below zero, has the first weight in round 1 and the other from round 2 on."
    )

    def __init__(self, settings: FedPNPSettings, context: Any) -> None:
        super().__init__(settings, context)
        self._in_one_pass: dict[torch.Size, bool] = {}

    def facts(self, round: int) -> dict[str, Any]:
        """Return alpha of the round (section 3.1 of the paper)."""
        return {"alpha": self.settings.alpha_first if round == 1 else self.settings.alpha}

    def prepare(self, message: Message, client: Client) -> Tensors:
        """Return alpha of the round as a tensor."""
        return {"alpha": torch.full((), float(message.facts["alpha"]), device=self.context.device)}

    def companions(self, network: nn.Module, client: Client) -> dict[str, nn.Module]:
        """Return the client's past model, where it has taken part before."""
        past = self._past(client)
        return {} if past is None else {PAST: past}

    def local_steps(self, message: Message, client: Client) -> LocalSteps:
        """Take local epochs from the broadcast weights, with the client's past model beside them."""
        steps = super().local_steps(message, client)
        return replace(steps, preparation=self._settling(client)) if steps.companions else steps

    def trained(self, network: nn.Module, client: Client, taken: TakenSteps) -> Update:
        """Return the client's update; it remembers its weights but for the instance head, which no past model needs."""
        update = super().trained(network, client, taken)
        memory = {name: t for name, t in update.message.tensors.items() if not name.startswith("instance.")}
        return replace(update, memory=memory)

    def step_loss(self, model: LocalModel, parameters: Tensors, batch: Batch, extra: Tensors) -> StepResult:
        """Return L = L_instance + alpha L_cluster (eq. 8)."""
        x = batch[0]
        with self.context.autocast():
            now = model(x)
            # Round 1 has no past: the current soft labels stand in.
            labels = model.ask(PAST, x, part="labels") if PAST in model.companions else now.y.detach()
        left_out = past_look_alikes(labels, self.settings.mu)
        instance = view_contrast(now.z, self.tau_instance, left_out, is_unit=True)
        y_a, y_b = now.y.chunk(2)
        cluster, shares = self.cluster_loss(y_a, y_b, self.tau_cluster, extra)
        return instance + extra["alpha"] * cluster, {
            "loss_instance": instance,
            "loss_cluster": cluster,
            "pool_dropped": left_out_share(left_out),
            "confidence": labels.amax(1).mean(),
            **shares,
        }

    def _past(self, client: Client) -> ClusterNet | None:
        if not client.memory:
            return None
        past: ClusterNet = self.network()
        load(past, {**past.state_dict(), **client.memory})
        return past.eval().requires_grad_(False)

    def _settling(self, client: Client) -> Preparation:
        """Return the work that gives the past model BatchNorm's statistics of the client's own views.

        Those that its training left have not settled where a round has few steps. The views are of some of the client's
        samples, like those that the past model will label.
        """
        generator = client.streams.torch("past views", self.context.device)

        def select() -> Batch:
            order = torch.randperm(len(client.train), generator=client.streams.torch("past samples"))
            return (client.train.raw(order[:SETTLING_SAMPLES].to(client.train.index.device)),)

        def work(model: LocalModel, parameters: Tensors, batch: Batch, extra: Tensors) -> Tensors:
            x = as_low_input(self.make_views(client.train.data.computable(batch[0]), generator), self.context)
            self._settle(model.companions[PAST], x)
            return {}

        return Preparation(select, work, (generator,))

    def _settle(self, past: nn.Module, x: Tensor) -> None:
        if x.shape not in self._in_one_pass:
            self._in_one_pass[x.shape] = fits_in_one_pass(past, x, self.context)
        if self._in_one_pass[x.shape]:
            settle_in_one_pass(past, x, self.context)
        else:
            settle(past, [Party(1.0, [lambda: x])], self.context)
