"""What the methods share whose server holds one `ClusterNet`: averaging, prediction, evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from shoal.data.augment import normalise
from shoal.methods.averaging.server_optimiser import next_average, trained_counts
from shoal.methods.contract.base import Client, Clients, Evaluation, Federation, Server, Update
from shoal.methods.contract.declared import MessageForm
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.contract.prediction import Prediction
from shoal.methods.fedpnp.shares import OTHERS, PART, SAMPLES, SHARES, as_metrics, even, from_metrics, of_the_federation
from shoal.methods.losses.contrastive import cluster_contrastive
from shoal.methods.scores.evaluation import evaluate_predictor
from shoal.methods.scores.recalibration import recalibrate
from shoal.methods.training.local import load, seeded, weights
from shoal.methods.training.local_steps import TakenSteps
from shoal.methods.training.model_stack import StepResult
from shoal.methods.training.two_views import TwoViewMethod
from shoal.models.encoders import build_encoder
from shoal.models.heads import ClusterNet

ROUNDING = 1e-5
"""By so much a mean of shares may be above 1."""


class ClusterMethod(TwoViewMethod):
    """A method whose server state is the weights of one `ClusterNet` and whose clusters are its cluster head's.

    Clients train the broadcast weights on two views; to override: `step_loss`, see `TwoViewMethod`.
    """

    judges_features = True
    averages = True
    server_optimiser = True
    evaluation_reads_memory = False
    shared_in_evaluation = "clusters"

    @property
    def over_federation(self) -> bool:
        """Whether clusters are to be equally full over the federation (`shoal.methods.fedpnp.shares`)."""
        return False

    def network(self) -> ClusterNet:
        """A fresh network with the run's initial weights."""
        c = self.context
        return cast(
            ClusterNet,
            seeded(lambda: ClusterNet(build_encoder(c.model.encoder, c.spec.shape), c.clusters), c, drawn=self.drawn),
        )

    def facts(self, round: int) -> dict[str, Any]:
        """What is broadcast beside the weights in round `round` (1-based)."""
        return {}

    def init_server(self, federation: Federation) -> Server:
        """The initial weights; where it is asked for, even shares of the clusters."""
        start = weights(self.network())
        if not self.over_federation:
            return Server(start)
        return Server({**start, SHARES: even(self.context.clusters)}, facts={SAMPLES: sum(federation.sizes)})

    def broadcast(self, server: Server, client: int) -> Message:
        """The weights and the facts of the round."""
        return Message(server.model, {**server.facts, **self.facts(server.round + 1)})

    def loaded(self, tensors: Tensors) -> ClusterNet:
        """The network with weights that were broadcast, or that the server has."""
        network = self.network()
        load(network, {name: tensor for name, tensor in tensors.items() if name != SHARES})
        return network

    def extra(self, message: Message, client: Client) -> Tensors:
        """What the steps use of the federation's shares, where they are asked for."""
        return of_the_federation(message, client, self.context.device) if self.over_federation else {}

    def cluster_loss(self, y_a: Tensor, y_b: Tensor, tau: float, extra: Tensors, *, decoupled: bool) -> StepResult:
        """The cluster-level loss of soft assignments (n, c), and what of it is to be known after the round."""
        if not self.over_federation:
            return cluster_contrastive(y_a, y_b, tau, decoupled=decoupled), {}
        others, part = extra[OTHERS], extra[PART]
        return cluster_contrastive(y_a, y_b, tau, decoupled=decoupled, others=others, part=part), as_metrics(y_a, y_b)

    def trained(self, network: ClusterNet, client: Client, taken: TakenSteps) -> tuple[Message, dict[str, float]]:
        """A client's message after its steps, and its metrics."""
        tensors, metrics = weights(network), taken.metrics
        if self.over_federation:
            tensors[SHARES], metrics = from_metrics(metrics, self.context.clusters)
        return Message(tensors, {"n": len(client.train)}), metrics

    def declared(self, server: Server, client: int, samples: int) -> MessageForm | None:
        """As of every averaging method; shares of clusters lie between 0 and 1."""
        form = super().declared(server, client, samples)
        if form is None or SHARES not in form.tensors:
            return form
        shares = replace(form.tensors[SHARES], least=0.0, most=1.0 + ROUNDING)
        return replace(form, tensors={**form.tensors, SHARES: shares})

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """The mean of the weights by number of samples."""
        return next_average(server, updates, self.context.aggregation, lambda: trained_counts(self.network()))

    def recalibrate(self, server: Server, clients: Clients, evaluation: Evaluation) -> Tensors:
        """BatchNorm's statistics of the averaged network, on the clients' data."""
        network = self.loaded(server.model)
        return recalibrate(network, clients, evaluation, self.context)

    def predictor(self, server: Server) -> Callable[[Tensor], Prediction]:
        """Argmax and softmax of the cluster head, features of the encoder; evaluation mode, no augmentation."""
        network = self.loaded(server.model)
        network.eval()

        def predict(x: Tensor) -> Prediction:
            x = normalise(x.to(self.context.device)).contiguous(memory_format=torch.channels_last)
            with torch.no_grad(), self.context.autocast():
                out = network(x)
            return Prediction(out.y.argmax(1), out.y, out.h)

        return predict

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """ACC, NMI, ARI and purity over all train and test images; representation metrics in the final evaluation."""
        return evaluate_predictor(self.predictor(server), evaluation, self.recipe())
