"""The base of methods whose server holds one `ClusterNet`: averaging, prediction, evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from shoal.methods.averaging.averaged_network import AveragedNetwork
from shoal.methods.contract.base import Clients, Evaluation, Server
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.contract.prediction import Prediction
from shoal.methods.losses.contrastive import cluster_contrastive
from shoal.methods.scores.evaluation import evaluate_predictor
from shoal.methods.training.local import as_input
from shoal.methods.training.model_stack import StepResult
from shoal.models.heads import ClusterNet


class ClusterMethod(AveragedNetwork):
    """A method whose server state is the weights of one `ClusterNet`; its cluster head gives the clusters.

    Clients train the broadcast weights on two views. A subclass overrides `step_loss`, see `AveragedNetwork`.
    """

    tau_instance = 0.5
    """Temperature of the instance-level contrastive loss."""
    tau_cluster = 1.0
    """Temperature of the cluster-level contrastive loss."""

    def build(self) -> nn.Module:
        """Build encoder, instance head and cluster head."""
        return ClusterNet(self.new_encoder(), self.context.clusters)

    def facts(self, round: int) -> dict[str, Any]:
        """Return the facts that are broadcast beside the weights in round `round` (1-based)."""
        return {}

    def broadcast(self, server: Server, client: int) -> Message:
        """Return the weights and the facts of the round."""
        return Message(server.model, {**server.facts, **self.facts(server.round + 1)})

    def cluster_loss(self, y_a: Tensor, y_b: Tensor, tau: float, extra: Tensors) -> StepResult:
        """Return the cluster-level loss of soft assignments (n, c), and numbers to log beside it."""
        return cluster_contrastive(y_a, y_b, tau), {}

    def predictor(self, server: Server) -> Callable[[Tensor], Prediction]:
        """Return a function to argmax and softmax of the cluster head, and features of the encoder."""
        network = self.loaded(server.model).eval()

        def predict(x: Tensor) -> Prediction:
            x = as_input(x.to(self.context.device))
            with torch.no_grad(), self.context.autocast():
                out = network(x)
            return Prediction(out.y.argmax(1), out.y, out.h)

        return predict

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Return ACC, NMI, ARI and purity over all train and test images; at the end also metrics of the features."""
        return evaluate_predictor(self.predictor(server), evaluation, self.recipe())
