"""FedSimCLR: SimCLR (Chen et al. 2020) with federated averaging."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from core.setting import setting
from methods.losses.contrastive import contrastive
from methods.ssd.self_supervised import OneNetwork, SelfSupervisedSettings
from models.heads import Projected


@dataclass(frozen=True)
class FedSimCLRSettings(SelfSupervisedSettings):
    """Hyper-parameters of FedSimCLR."""

    tau: float = setting(0.5, "temperature of the contrastive loss (NT-Xent)", gt=0)


class FedSimCLR(OneNetwork):
    """FedSimCLR as a method."""

    name = "fedsimclr"
    Settings = FedSimCLRSettings
    settings: FedSimCLRSettings

    def loss(self, out: Projected, extra: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """NT-Xent of the projections."""
        z_a, z_b = out.z.chunk(2)
        return contrastive(z_a, z_b, self.settings.tau), {}
