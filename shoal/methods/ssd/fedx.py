"""FedX: unsupervised federated learning with cross knowledge distillation (Han et al. 2022, arXiv 2207.09158).

A client learns from two views of its samples, and from the model that it was sent. Each gives a contrastive loss, and a
relational one: both views must have the same similarities to a random batch of other samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from shoal.core.setting import setting
from shoal.methods.contract.base import Client
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.contract.questions import Question
from shoal.methods.losses.byol import make_target
from shoal.methods.losses.contrastive import contrastive
from shoal.methods.losses.relational import relational
from shoal.methods.ssd.self_supervised import SelfSupervised
from shoal.methods.training.local_steps import LocalSteps
from shoal.methods.training.model_stack import Batch, LocalModel, StepResult
from shoal.models.heads import ByolNet

WIDTH = 256
"""Width of projections, predictions and the hidden layers of both heads."""
GLOBAL = "global"
"""The companion of a client: encoder and projector as the server sent them, in evaluation mode."""


@dataclass(frozen=True)
class FedXSettings:
    """Hyper-parameters of FedX; defaults are the authors'."""

    tau: float = setting(0.1, "temperature of all losses", gt=0)
    tau_target: float = setting(0.1, "temperature of the target of the relational losses", gt=0)


class FedX(SelfSupervised):
    """FedX as a method: server state is encoder, projector and predictor."""

    name = "fedx"
    title = "FedX"
    question = Question.FEATURES
    about = "Contrast and relations of views, learned from the global model too."
    Settings = FedXSettings
    settings: FedXSettings

    def build(self) -> ByolNet:
        """Build the network with its predictor; neither head has BatchNorm."""
        return ByolNet(self.new_encoder(), WIDTH, WIDTH, norm=False)

    def companions(self, network: nn.Module, client: Client) -> dict[str, nn.Module]:
        """Return the global model."""
        return {GLOBAL: make_target(cast(ByolNet, network)).eval()}

    def local_steps(self, message: Message, client: Client) -> LocalSteps:
        """Return local epochs with the global model beside the network, and other samples beside each batch."""
        steps = super().local_steps(message, client)

        def inputs(batch: Batch) -> Batch:
            # Views a of samples and of others, then views b of both: others need one view.
            (x,) = steps.inputs(batch)
            return (x[: len(x) // 4 * 3],)

        return replace(steps, batches=with_others(steps.batches, client), inputs=inputs)

    def step_loss(self, model: LocalModel, parameters: Tensors, batch: Batch, extra: Tensors) -> StepResult:
        """Return the contrastive and the relational losses, each of the client alone and with the global model."""
        s = self.settings
        with self.context.autocast():
            z = model(*batch).z
            prediction = cast(ByolNet, model.network).predictor(z).float()
            sent = model.ask(GLOBAL, *batch).float()
        z_a, z_others, z_b = z.chunk(3)
        p_a, _, p_b = prediction.chunk(3)
        _, sent_others, sent_b = sent.chunk(3)
        contrast = contrastive(z_a, z_b, s.tau)
        contrast_sent = contrastive(p_a, sent_b, s.tau)
        relation = relational(z_a, z_b, z_others, s.tau, s.tau_target)
        relation_sent = relational(p_a, p_b, sent_others, s.tau, s.tau_target)
        return contrast + relation + (contrast_sent + relation_sent), {
            "loss_local": contrast,
            "loss_global": contrast_sent,
            "loss_relation_local": relation,
            "loss_relation_global": relation_sent,
        }


def with_others(batches: Iterable[Tensor], client: Client) -> Iterator[Tensor]:
    """Yield each batch of positions followed by as many positions of other samples, drawn at random for it.

    Args:
        batches: positions, one tensor a step.
        client: owns the samples.
    """
    # Drawn on the device: a copy to it would wait in every step.
    device = client.train.index.device
    generator = client.streams.torch("other samples", device)
    count = len(client.train)
    for positions in batches:
        others = torch.randperm(count, generator=generator, device=device)[: len(positions)]
        yield torch.cat((positions, others))
