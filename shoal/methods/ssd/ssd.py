"""SSD: soft separation and distillation (Fang, Lin, King, Zhang 2025), and its baseline FedAlignUniform.

A client aligns two views and spreads its own samples. Dimension-scaled regularisation (DSR) pulls each client's
projections towards dimensions of its own, so that clients spread apart without seeing each other. Distillation passes
what the projector gains to the encoder.

docs/methods.md lists where this departs from the poster and from the released code.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from shoal.core.setting import setting
from shoal.methods.contract.base import Client, Federation, Server
from shoal.methods.contract.context import MethodError
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.contract.questions import Question
from shoal.methods.losses.align_uniform import align_loss, uniform_loss_of_views
from shoal.methods.losses.unit_rows import unit_rows
from shoal.methods.ssd.losses import (
    distill_loss,
    dsr_loss,
    subspace_basis,
    subspace_dimensions,
)
from shoal.methods.ssd.self_supervised import SelfSupervised
from shoal.methods.training.model_stack import Batch, LocalModel, StepResult


@dataclass(frozen=True)
class SSDSettings:
    """Hyper-parameters of SSD; with gamma 0 and delta 0 it is FedAlignUniform."""

    beta: float = setting(1.0, "weight of the uniformity loss", ge=0)
    gamma: float = setting(1.0, "weight of the dimension-scaled regularisation (DSR)", ge=0)
    delta: float = setting(0.1, "weight of the projector distillation loss", ge=0)
    alpha: float = setting(10.0, "factor by which DSR scales the dimensions of a client's own subspace", ge=1)
    temperature: float = setting(0.5, "temperature of the projector distillation", gt=0)


class SSD(SelfSupervised):
    """SSD as a method: server state is encoder and projector; S_k follows from seed and client id."""

    name = "ssd"
    title = "SSD"
    question = Question.FEATURES
    about = "Alignment and uniformity, with parts of the features for each client."
    Settings = SSDSettings
    settings: SSDSettings

    def __init__(self, settings: SSDSettings, context: Any) -> None:
        super().__init__(settings, context)
        self._subspaces: dict[int, Tensor] = {}

    @cached_property
    def width(self) -> int:
        """The dimension of the features and of the projections; read once from a network."""
        return int(self.network().encoder.features)

    @cached_property
    def basis(self) -> Tensor:
        """The basis of the subspaces on the device; computed once."""
        return subspace_basis(self.width, self.context.seed).to(self.context.device)

    def init_server(self, federation: Federation) -> Server:
        """Start from the initial weights.

        Raises:
            MethodError: there are fewer dimensions than clients.
        """
        if self.has_subspaces and federation.clients > self.width:
            raise MethodError(
                f"{federation.clients} clients cannot each own one of the {self.width} dimensions of the features: "
                "choose a wider model.encoder, or set method.gamma=0"
            )
        return super().init_server(federation)

    @property
    def has_subspaces(self) -> bool:
        """Whether each client owns a subspace."""
        return self.settings.gamma > 0

    def prepare(self, message: Message, client: Client) -> dict[str, Tensor]:
        """Return the client's dimensions in the basis: `inside` (d,) bool, `scale` d_k (d,), `basis` Q (d, d)."""
        inside = torch.zeros(self.width, dtype=torch.bool, device=self.context.device)
        if self.has_subspaces:
            inside.index_fill_(0, self.subspaces(message.facts["clients"])[client.id], True)
        return {"inside": inside, "scale": torch.where(inside, self.settings.alpha, 1.0), "basis": self.basis}

    def subspaces(self, clients: int) -> Tensor:
        """Return each client's dimensions, on the device: computed, and copied there, once."""
        if clients not in self._subspaces:
            dimensions = subspace_dimensions(self.width, clients, self.context.seed)
            self._subspaces[clients] = dimensions.to(self.context.device)
        return self._subspaces[clients]

    def step_loss(self, model: LocalModel, parameters: Tensors, batch: Batch, extra: Tensors) -> StepResult:
        """Return L = align + beta uniform + gamma DSR + delta distill, and its terms."""
        s = self.settings
        with self.context.autocast():
            out = model(*batch)
        z = unit_rows(out.z)
        align = align_loss(*z.chunk(2))
        uniform = uniform_loss_of_views(z)
        total = align + s.beta * uniform
        numbers = {"loss_align": align, "loss_uniform": uniform}
        if s.gamma:
            dsr = dsr_loss(z, extra["scale"], extra["basis"])
            total = total + s.gamma * dsr
            numbers["loss_dsr"] = dsr
        if s.delta:
            distill = distill_loss(out.h, out.z, s.temperature)
            total = total + s.delta * distill
            numbers["loss_distill"] = distill
        return total, numbers
