"""FedBYOLCC: BYOL with the cluster loss of contrastive clustering and federated averaging, a baseline of FedPNP.

Miao and Koyuncu 2024, section 3.1, name it in one sentence: BYOL's mean squared error (Grill et al. 2020) takes the
place of the instance loss, and the cluster-level loss is that of contrastive clustering (Li et al. 2021). The momentum,
the heads and the target's start in each round, the broadcast weights, are our choices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from shoal.core.setting import setting
from shoal.methods.contract.base import Client, Update
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.contract.questions import Question
from shoal.methods.fedpnp.cluster_method import ClusterMethod
from shoal.methods.losses.byol import byol_loss, make_target, spread, update_target
from shoal.methods.losses.contrastive import cluster_contrastive
from shoal.methods.training.local import load, seeded, weights
from shoal.methods.training.local_steps import LocalSteps, TakenSteps
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

    def network(self) -> ByolClusterNet:
        """Return a fresh network with the run's initial weights."""
        c = self.context

        def build() -> ByolClusterNet:
            return ByolClusterNet(self.new_encoder(), c.clusters)

        return cast(ByolClusterNet, seeded(build, c, cache=self.network_cache))

    def local_steps(self, message: Message, client: Client) -> LocalSteps:
        """Take local epochs from the broadcast weights, with the momentum target beside them."""
        network = self.network()
        load(network, message.tensors)
        target = make_target(network)

        def finish(taken: TakenSteps) -> Update:
            return Update(Message(weights(network), {"n": len(client.train)}), metrics=taken.metrics)

        return self.view_steps(client, network, finish, companions={"target": target})

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
