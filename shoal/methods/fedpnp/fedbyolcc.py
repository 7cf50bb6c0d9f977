"""FedBYOLCC: BYOL with the cluster loss of contrastive clustering and federated averaging, a baseline of FedPNP.

Miao and Koyuncu 2024, section 3.1, name it in one sentence: BYOL's mean squared error (Grill et al. 2020) takes the
place of the instance loss, and the cluster-level loss is that of contrastive clustering (Li et al. 2021). The momentum,
the heads and the target's start in each round, the broadcast weights, are our choices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from torch import nn

from shoal.core.setting import setting
from shoal.methods.contract.base import Client
from shoal.methods.contract.message import Tensors
from shoal.methods.contract.questions import Question
from shoal.methods.fedpnp.cluster_method import ClusterMethod
from shoal.methods.losses.byol import byol_loss, make_target, spread, update_target
from shoal.methods.losses.contrastive import cluster_contrastive
from shoal.methods.training.model_stack import Batch, LocalModel, StepResult
from shoal.models.heads import ByolClusterNet


@dataclass(frozen=True)
class FedBYOLCCSettings:
    """Hyper-parameters of FedBYOLCC, which are ours: the paper gives the temperature of the cluster loss alone."""

    momentum: float = setting(
        0.99, "momentum of the target network: the share of its weights that it keeps in each step", ge=0, le=1
    )
    alpha: float = setting(1.0, "weight of the cluster-level loss", ge=0)


class FedBYOLCC(ClusterMethod):
    """FedBYOLCC as a method: server state is one `ByolClusterNet`; clients keep nothing."""

    name = "fedbyolcc"
    title = "FedBYOLCC"
    question = Question.IMAGES
    about = "A cluster head on BYOL, which needs no negatives."
    Settings = FedBYOLCCSettings
    settings: FedBYOLCCSettings

    def build(self) -> nn.Module:
        """Build the network with its predictor."""
        return ByolClusterNet(self.new_encoder(), self.context.clusters)

    def companions(self, network: nn.Module, client: Client) -> dict[str, nn.Module]:
        """Return the momentum target, at first a copy of the broadcast network."""
        return {"target": make_target(cast(ByolClusterNet, network))}

    def step_loss(self, model: LocalModel, parameters: Tensors, batch: Batch, extra: Tensors) -> StepResult:
        """Return L = L_BYOL + alpha L_cluster."""
        s = self.settings
        with self.context.autocast():
            now = model(*batch)
            projection = model.ask("target", *batch).float()
        instance = byol_loss(now.prediction, projection)
        y_a, y_b = now.y.chunk(2)
        cluster = cluster_contrastive(y_a, y_b, self.tau_cluster)
        return instance + s.alpha * cluster, {
            "loss_instance": instance,
            "loss_cluster": cluster,
            "confidence": now.y.detach().max(1).values.mean(),
            "spread": spread(projection),
        }

    def after_step(self, parameters: Tensors, companions: dict[str, Tensors]) -> None:
        """Move the target towards the network."""
        update_target(companions["target"], parameters, self.settings.momentum)
