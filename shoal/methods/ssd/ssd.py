"""SSD: soft separation and distillation (Fang, Lin, King, Zhang 2025), and its baseline FedAlignUniform.

A client aligns two views and spreads its own samples. Dimension-scaled regularisation pulls each client's projections
towards dimensions of its own, so that clients spread apart without seeing each other; distillation hands what the
projector gains down to the encoder.

Where this departs from the poster, and from the released code: docs/methods.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.core.setting import setting
from shoal.methods.contract.base import Client, Federation, Server, Update
from shoal.methods.contract.context import MethodError
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.losses.align_uniform import align_loss, uniform_loss
from shoal.methods.ssd.gradients import gradient_share
from shoal.methods.ssd.losses import (
    Basis,
    Direction,
    Form,
    confined,
    distill_loss,
    dsr_loss,
    subspace_basis,
    subspace_dimensions,
)
from shoal.methods.ssd.self_supervised import SelfSupervised, SelfSupervisedSettings
from shoal.methods.training.local_steps import LocalSteps, TakenSteps
from shoal.methods.training.model_stack import Batch, LocalModel, StepResult
from shoal.models.heads import ProjectionNet


@dataclass(frozen=True)
class SSDSettings(SelfSupervisedSettings):
    """Hyper-parameters of SSD; gamma 0 and delta 0 are FedAlignUniform."""

    beta: float = setting(1.0, "weight of the uniformity loss", ge=0)
    gamma: float = setting(
        1.0,
        "weight of the dimension-scaled regularisation (DSR); with the form poster, about 0.05; with hard separation 0",
        ge=0,
    )
    delta: float = setting(0.1, "weight of the projector distillation loss; without a projector 0", ge=0)
    alpha: float = setting(10.0, "factor by which DSR scales the dimensions of a client's own subspace", ge=1)
    form: Form = setting(
        "code", "form of the DSR: |Z - T| / n as in the authors' code, or the mean of |z - t|^2 as on the poster"
    )
    basis: Basis = setting(
        "random", "basis that spans the clients' subspaces: a random orthonormal one, or the axes of the projection"
    )
    temperature: float = setting(0.5, "temperature of the projector distillation", gt=0)
    direction: Direction = setting(
        "poster", "direction of the distillation: KL(h || z) as on the poster, or KL(z || h) as in the authors' code"
    )
    stop: bool = setting(False, "stop the gradient of the distillation loss at the projections")
    projector: bool = setting(True, "train with a projector; without it, losses are computed on the features")
    separation: Literal["soft", "hard"] = setting(
        "soft", "separation of clients: soft by DSR, or hard, where each client is confined to its own subspace"
    )


class NoProjector(ProjectionNet):
    """An encoder whose features are its projections."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__(encoder, 1)
        self.instance = nn.Sequential()


class SSD(SelfSupervised):
    """SSD as a method: server state is encoder and projector; S_k follows from seed and client id."""

    name = "ssd"
    Settings = SSDSettings
    settings: SSDSettings

    def __init__(self, settings: SSDSettings, context: Any) -> None:
        super().__init__(settings, context)
        if settings.separation == "hard" and settings.gamma:
            raise MethodError(
                f"method.gamma is {settings.gamma:g}, and with method.separation=hard there is no DSR that it could "
                "weigh: set method.gamma=0"
            )
        if not settings.projector and settings.delta:
            raise MethodError(
                f"method.delta is {settings.delta:g}, and with method.projector=false there is nothing to distil: "
                "set method.delta=0"
            )

    def build(self) -> ProjectionNet:
        """With or without projector."""
        network = super().build()
        return network if self.settings.projector else NoProjector(network.encoder)

    @cached_property
    def widths(self) -> tuple[int, int]:
        """Dimensions of the features, and of the projections; a network is built to know them, once."""
        features = int(self.network().encoder.features)  # type: ignore[arg-type]
        return features, (self.settings.projection or features) if self.settings.projector else features

    @cached_property
    def basis(self) -> Tensor:
        """The basis of the subspaces, on the device; found once."""
        return subspace_basis(self.widths[1], self.settings.basis, self.context.seed).to(self.context.device)

    def init_server(self, federation: Federation) -> Server:
        """The initial weights.

        Raises:
            MethodError: fewer dimensions than clients, or projections and features that cannot be compared.
        """
        s = self.settings
        features, width = self.widths
        if (s.gamma or s.separation == "hard") and federation.clients > width:
            raise MethodError(
                f"{federation.clients} clients cannot each own a dimension of {width}: raise method.projection, or set "
                "method.gamma=0"
            )
        if s.delta and width != features:
            raise MethodError("method.delta needs projections as wide as the features: leave method.projection at 0")
        return super().init_server(federation)

    def prepare(self, message: Message, client: Client) -> dict[str, Tensor]:
        """The client's dimensions in the shared basis: `inside` (d,) bool, `scale` d_k (d,), `basis` Q (d, d)."""
        s, width, c = self.settings, self.widths[1], self.context
        inside = torch.zeros(width, dtype=torch.bool)
        if s.gamma or s.separation == "hard":
            inside[subspace_dimensions(width, message.facts["clients"], c.seed)[client.id]] = True
        scale = torch.where(inside, s.alpha, 1.0)
        return {"inside": inside.to(c.device), "scale": scale.to(c.device), "basis": self.basis}

    def seen(self, z: Tensor, extra: Mapping[str, Tensor]) -> Tensor:
        """Projections (n, d) as a client's loss takes them: unit vectors; with hard separation of its own subspace."""
        if self.settings.separation == "hard":
            return confined(z, extra["inside"], extra["basis"])
        return F.normalize(z, dim=1)

    def local_steps(self, message: Message, client: Client) -> LocalSteps:
        """Local epochs; with DSR the metric `dsr_gradient_share` beside their means."""
        steps = super().local_steps(message, client)
        if not self.regularised:
            return steps

        def finish(taken: TakenSteps) -> Update:
            update = steps.finish(taken)
            return replace(update, metrics={**update.metrics, "dsr_gradient_share": self.dsr_share(message, client)})

        return replace(steps, finish=finish)

    def dsr_share(self, message: Message, client: Client) -> float:
        """How strongly DSR pulls: the norm of the gradient of gamma DSR over that of align + beta uniform.

        Over all parameters, at the broadcast weights, on the client's first batch of the round.
        """
        steps = super().local_steps(message, client)  # the same draws once more, on a network of their own
        with self.context.autocast():
            out = steps.network(*steps.batch(next(iter(steps.batches))))
        z_a, z_b = self.seen(out.z, steps.extra).chunk(2)
        plain = align_loss(z_a, z_b) + self.settings.beta * (uniform_loss(z_a) + uniform_loss(z_b)) / 2
        dsr = self.settings.gamma * self.regularisation(z_a, z_b, steps.extra)
        return gradient_share(dsr, plain, list(steps.network.parameters()))

    @property
    def regularised(self) -> bool:
        """Whether DSR is part of the loss."""
        return self.settings.gamma > 0

    def regularisation(self, z_a: Tensor, z_b: Tensor, extra: Mapping[str, Tensor]) -> Tensor:
        """DSR, the mean of both views'."""
        form = self.settings.form
        return cast(Tensor, sum(dsr_loss(part, extra["scale"], extra["basis"], form) for part in (z_a, z_b)) / 2)

    def step_loss(self, model: LocalModel, parameters: Tensors, batch: Batch, extra: Tensors) -> StepResult:
        """L = align + beta uniform + gamma DSR + delta distill."""
        s = self.settings
        with self.context.autocast():
            out = model(*batch)
        z_a, z_b = self.seen(out.z, extra).chunk(2)
        align, uniform = align_loss(z_a, z_b), (uniform_loss(z_a) + uniform_loss(z_b)) / 2
        total = align + s.beta * uniform
        numbers = {"loss_align": align, "loss_uniform": uniform}
        if self.regularised:
            dsr = self.regularisation(z_a, z_b, extra)
            total, numbers["loss_dsr"] = total + s.gamma * dsr, dsr
        if s.delta:
            distill = distill_loss(out.h, out.z, s.temperature, s.direction, stop=s.stop)
            total, numbers["loss_distill"] = total + s.delta * distill, distill
        return total, numbers
