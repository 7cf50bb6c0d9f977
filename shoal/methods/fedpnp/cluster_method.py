"""The base of methods whose server holds one `ClusterNet`: averaging, prediction, evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor

from shoal.methods.averaging.server_optimiser import next_average, trained_counts
from shoal.methods.contract.base import Client, Clients, Evaluation, Federation, Server, Update
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.contract.prediction import Prediction
from shoal.methods.losses.contrastive import cluster_contrastive
from shoal.methods.scores.evaluation import evaluate_predictor
from shoal.methods.scores.recalibration import recalibrate
from shoal.methods.training.local import as_input, load, seeded, weights
from shoal.methods.training.local_steps import TakenSteps
from shoal.methods.training.model_stack import StepResult
from shoal.methods.training.two_views import TwoViewMethod
from shoal.models.heads import ClusterNet


class ClusterMethod(TwoViewMethod):
    """A method whose server state is the weights of one `ClusterNet`; its cluster head gives the clusters.

    Clients train the broadcast weights on two views. A subclass overrides `step_loss`, see `TwoViewMethod`.
    """

    tau_instance = 0.5
    """Temperature of the instance-level contrastive loss."""
    tau_cluster = 1.0
    """Temperature of the cluster-level contrastive loss."""
    judges_features = True
    starts_pretrained = True
    averages = True
    server_optimiser = True
    evaluation_reads_memory = False
    shared_in_evaluation = "clusters"

    def network(self) -> ClusterNet:
        """Return a fresh network with the run's initial weights."""
        c = self.context

        def build() -> ClusterNet:
            return ClusterNet(self.new_encoder(), c.clusters)

        return cast(ClusterNet, seeded(build, c, cache=self.network_cache))

    def facts(self, round: int) -> dict[str, Any]:
        """Return the facts that are broadcast beside the weights in round `round` (1-based)."""
        return {}

    def init_server(self, federation: Federation) -> Server:
        """Return the initial weights."""
        return Server(weights(self.network()))

    def broadcast(self, server: Server, client: int) -> Message:
        """Return the weights and the facts of the round."""
        return Message(server.model, {**server.facts, **self.facts(server.round + 1)})

    def loaded(self, tensors: Tensors) -> ClusterNet:
        """Return a network with weights that were broadcast, or that the server has."""
        network = self.network()
        load(network, tensors)
        return network

    def extra(self, message: Message, client: Client) -> Tensors:
        """Return tensors that every step of the client uses in `cluster_loss`."""
        return {}

    def cluster_loss(self, y_a: Tensor, y_b: Tensor, tau: float, extra: Tensors) -> StepResult:
        """Return the cluster-level loss of soft assignments (n, c), and numbers to log beside it."""
        return cluster_contrastive(y_a, y_b, tau), {}

    def trained(self, network: ClusterNet, client: Client, taken: TakenSteps) -> tuple[Message, dict[str, float]]:
        """Return a client's message after its steps, and its metrics."""
        return Message(weights(network), {"n": len(client.train)}), taken.metrics

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Return the mean of the weights by number of samples."""
        return next_average(server, updates, self.context.aggregation, lambda: trained_counts(self.network()))

    def recalibrate(self, server: Server, clients: Clients, evaluation: Evaluation) -> Tensors:
        """Return BatchNorm's statistics of the averaged network, on the clients' data."""
        network = self.loaded(server.model)
        return recalibrate(network, clients, evaluation, self.context)

    def predictor(self, server: Server) -> Callable[[Tensor], Prediction]:
        """Return a function to argmax and softmax of the cluster head, and features of the encoder."""
        network = self.loaded(server.model)
        network.eval()

        def predict(x: Tensor) -> Prediction:
            x = as_input(x.to(self.context.device))
            with torch.no_grad(), self.context.autocast():
                out = network(x)
            return Prediction(out.y.argmax(1), out.y, out.h)

        return predict

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Return ACC, NMI, ARI and purity over all train and test images; at the end also metrics of the features."""
        return evaluate_predictor(self.predictor(server), evaluation, self.recipe())
