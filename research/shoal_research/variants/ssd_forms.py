"""SSD in the forms of its poster and of its released code, without projector, and hard separation: ablations.

It also logs how strongly the regularisation pulls.

Shapes: n samples, d dimensions of features h and projections z.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.core.setting import setting
from shoal.methods.contract.base import Client
from shoal.methods.contract.context import MethodError
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.losses.align_uniform import align_loss, uniform_loss_of_views
from shoal.methods.losses.unit_rows import unit_rows
from shoal.methods.ssd.losses import distill_loss, dsr_loss
from shoal.methods.ssd.ssd import SSD, SSDSettings
from shoal.methods.training.local_steps import LocalSteps, Preparation
from shoal.methods.training.model_stack import Batch, LocalModel, StepResult
from shoal.models.heads import ProjectionNet
from shoal_research.variants.decorrelation import decorrelation_term
from shoal_research.variants.gradients import gradient_share


@dataclass(frozen=True)
class FormsSSDSettings(SSDSettings):
    """Hyper-parameters of SSD, and its forms; gamma is about 0.05 with form poster, and 0 with form hard."""

    form: Literal["code", "poster", "hard"] = setting(
        "code",
        "how clients are kept apart: softly by DSR as |Z - T| / n (code, of the authors) or as the mean of |z - t|^2 "
        "(poster), or hard, where each client is confined to its own subspace",
    )
    basis: Literal["random", "axis"] = setting(
        "random", "basis that spans the clients' subspaces: a random orthonormal one, or the axes of the projection"
    )
    direction: Literal["poster", "code"] = setting(
        "poster", "direction of the distillation: KL(h || z) as on the poster, or KL(z || h) as in the authors' code"
    )
    stop: bool = setting(False, "stop the gradient of the distillation loss at the projections")
    decorrelation: float = setting(
        0.0,
        "FedDecorr's beta: weight of the squared correlations of the features' dimensions, against their collapse (the "
        "paper: 0.1)",
        ge=0,
    )
    projector: bool = setting(True, "train with a projector; without it, losses are computed on the features")


class NoProjector(ProjectionNet):
    """An encoder whose features are its projections."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__(encoder, 1)
        self.instance = nn.Sequential()


class FormsSSD(SSD):
    """SSD whose form is a setting; by default it is SSD."""

    name = "ssd_forms"
    title = "SSD in other forms"
    about = "SSD as its poster or its released code has it, or with hard separation."
    Settings = FormsSSDSettings
    settings: FormsSSDSettings

    def __init__(self, settings: FormsSSDSettings, context: Any) -> None:
        super().__init__(settings, context)
        if settings.form == "hard" and settings.gamma:
            raise MethodError(
                f"method.gamma is {settings.gamma:g}, and with method.form=hard there is no DSR to weigh: set "
                "method.gamma=0"
            )
        if not settings.projector and settings.delta:
            raise MethodError(
                f"method.delta is {settings.delta:g}, and with method.projector=false there is nothing to distil: "
                "set method.delta=0"
            )

    def build(self) -> ProjectionNet:
        """Build the network with or without a projector."""
        network = super().build()
        return network if self.settings.projector else NoProjector(network.encoder)

    def local_steps(self, message: Message, client: Client) -> LocalSteps:
        """Return local epochs; with DSR their metrics include `dsr_gradient_share`."""
        steps = super().local_steps(message, client)
        if not self.settings.gamma:
            return steps
        batches = list(steps.batches)

        def work(model: LocalModel, parameters: Tensors, batch: Batch, extra: Tensors) -> dict[str, Tensor]:
            return {"dsr_gradient_share": self.dsr_share(model, parameters, steps.inputs(batch), extra)}

        preparation = Preparation(lambda: steps.select(batches[0]), work, restores=True)
        return replace(steps, batches=batches, preparation=preparation)

    def dsr_share(self, model: LocalModel, parameters: Tensors, batch: Batch, extra: Tensors) -> Tensor:
        """Return how strongly DSR pulls: the norm of the gradient of gamma DSR over that of align + beta uniform.

        The gradients are over all parameters, at the broadcast weights, on the client's first batch of the round.
        """
        with self.context.autocast():
            out = model(*batch)
        z = self.directions(out.z, extra)
        baseline = align_loss(*z.chunk(2)) + self.settings.beta * uniform_loss_of_views(z)
        dsr = self.settings.gamma * self.regularisation(z, extra)
        return gradient_share(dsr, baseline, list(parameters.values()))

    @cached_property
    def basis(self) -> Tensor:
        """The basis of the subspaces on the device."""
        return torch.eye(self.width).to(self.context.device) if self.settings.basis == "axis" else super().basis

    @property
    def has_subspaces(self) -> bool:
        """Whether each client owns a subspace."""
        return super().has_subspaces or self.settings.form == "hard"

    def step_loss(self, model: LocalModel, parameters: Tensors, batch: Batch, extra: Tensors) -> StepResult:
        """Return SSD's loss in its form, with FedDecorr's term, and its terms."""
        s = self.settings
        with self.context.autocast():
            out = model(*batch)
        z = self.directions(out.z, extra)
        align = align_loss(*z.chunk(2))
        uniform = uniform_loss_of_views(z)
        total = align + s.beta * uniform
        numbers = {"loss_align": align, "loss_uniform": uniform}
        if s.gamma:
            numbers["loss_dsr"] = self.regularisation(z, extra)
            total = total + s.gamma * numbers["loss_dsr"]
        if s.delta:
            numbers["loss_distill"] = self.distillation(out.h, out.z)
            total = total + s.delta * numbers["loss_distill"]
        if s.decorrelation:
            term = decorrelation_term(out.h)
            total = total + s.decorrelation * term
            numbers["decorrelation"] = term.detach()
        return total, numbers

    def directions(self, z: Tensor, extra: Mapping[str, Tensor]) -> Tensor:
        """Return projections (n, d) as unit vectors for a client's loss; with `form: hard` in its own subspace."""
        if self.settings.form == "hard":
            return confined(z, extra["inside"], extra["basis"])
        return unit_rows(z)

    def regularisation(self, z: Tensor, extra: Mapping[str, Tensor]) -> Tensor:
        """Return DSR, the mean over both views of unit projections (2n, d)."""
        loss = squared_dsr if self.settings.form == "poster" else dsr_loss
        return loss(z, extra["scale"], extra["basis"])

    def distillation(self, h: Tensor, z: Tensor) -> Tensor:
        """Return the loss by which features (2n, d) learn from projections, or the other way round."""
        teacher = z.detach() if self.settings.stop else z
        if self.settings.direction == "code":
            return distill_loss(teacher, h, self.settings.temperature)
        return distill_loss(h, teacher, self.settings.temperature)


def squared_dsr(z: Tensor, scale: Tensor, basis: Tensor) -> Tensor:
    """Return DSR as on the poster: the mean of |z - t|^2 over rows, whose target t has no gradient.

    Args:
        z: unit projections of both views (2n, d).
        scale: d_k (d,): alpha on S_k, 1 elsewhere.
        basis: Q (d, d).
    """
    losses = []
    for part in z.chunk(2):
        turned = part @ basis
        target = F.normalize(turned.detach() * scale, dim=1)
        losses.append((turned - target).pow(2).sum(1).mean())
    return (losses[0] + losses[1]) / 2


def confined(z: Tensor, inside: Tensor, basis: Tensor) -> Tensor:
    """Return the part of projections in a client's own subspace as unit vectors: hard separation.

    Args:
        z: projections (n, d).
        inside: bool (d,), true on S_k.
        basis: Q (d, d).
    """
    return F.normalize((z @ basis) * inside, dim=1)
