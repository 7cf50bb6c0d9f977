"""FedSimCLR: SimCLR (Chen et al. 2020) with federated averaging."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.core.setting import setting
from shoal.methods.contract.message import Tensors
from shoal.methods.contract.questions import Question
from shoal.methods.losses.contrastive import view_contrast
from shoal.methods.ssd.self_supervised import SelfSupervised
from shoal.methods.training.model_stack import Batch, LocalModel, StepResult


@dataclass(frozen=True)
class FedSimCLRSettings:
    """Hyper-parameters of FedSimCLR."""

    tau: float = setting(0.5, "temperature of the contrastive loss (NT-Xent)", gt=0)


class FedSimCLR(SelfSupervised):
    """FedSimCLR as a method."""

    name = "fedsimclr"
    title = "FedSimCLR"
    question = Question.FEATURES
    about = "Contrast of two views, averaged over clients; the first to try."
    Settings = FedSimCLRSettings
    settings: FedSimCLRSettings

    def step_loss(self, model: LocalModel, parameters: Tensors, batch: Batch, extra: Tensors) -> StepResult:
        """Return NT-Xent of the projections."""
        with self.context.autocast():
            z = model(*batch).z
        return view_contrast(z, self.settings.tau), {}
