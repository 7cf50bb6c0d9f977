"""FedCC: contrastive clustering (Li et al. 2021) with federated averaging, FedPNP's main baseline.

It has the networks, views, optimiser and averaging of FedPNP; every other sample of a batch is a negative, and the
cluster loss has weight 1 in every round.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.core.setting import setting
from shoal.methods.contract.message import Tensors
from shoal.methods.contract.questions import Question
from shoal.methods.fedpnp.cluster_method import ClusterMethod
from shoal.methods.losses.contrastive import view_contrast
from shoal.methods.training.model_stack import Batch, LocalModel, StepResult


@dataclass(frozen=True)
class FedCCSettings:
    """Hyper-parameters of FedCC."""

    alpha: float = setting(1.0, "weight of the cluster-level loss", ge=0)


class FedCC(ClusterMethod):
    """FedCC as a method: server state is one `ClusterNet`; clients keep nothing."""

    name = "fedcc"
    title = "federated contrastive clustering (FedCC)"
    question = Question.IMAGES
    about = "Trains an encoder and a cluster head at once."
    Settings = FedCCSettings
    settings: FedCCSettings

    def step_loss(self, model: LocalModel, parameters: Tensors, batch: Batch, extra: Tensors) -> StepResult:
        """Return L = L_instance + alpha L_cluster."""
        s = self.settings
        with self.context.autocast():
            now = model(*batch)
        y_a, y_b = now.y.chunk(2)
        instance = view_contrast(now.z, self.tau_instance, is_unit=True)
        cluster, shares = self.cluster_loss(y_a, y_b, self.tau_cluster, extra)
        return instance + s.alpha * cluster, {
            "loss_instance": instance,
            "loss_cluster": cluster,
            "confidence": now.y.detach().max(1).values.mean(),
            **shares,
        }
