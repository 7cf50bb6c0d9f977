"""Single-training: SimCLR (Chen et al. 2020) on each client alone, FedPNP's baseline without any exchange.

Every client starts from the same weights and trains on its own data for all rounds; weights and optimiser stay with
it, so that a round is only a checkpoint of one uninterrupted training. K-means finds clusters among the features of
each client's encoder, and the scores are means over clients. FedPNP's table trains 300 epochs: 60 rounds of 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import cast

from torch import Tensor

from shoal.core.setting import setting
from shoal.methods.contract.base import Client, Clients, Evaluation, Server, Update
from shoal.methods.contract.declared import MessageForm, forms_like
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.contract.questions import Question
from shoal.methods.losses.contrastive import view_contrast
from shoal.methods.scores.evaluation import embed_with, evaluate_features
from shoal.methods.training.local import load, seeded, weights
from shoal.methods.training.local_steps import LocalSteps, TakenSteps
from shoal.methods.training.model_stack import Batch, LocalModel, StepResult
from shoal.methods.training.two_views import TwoViewMethod
from shoal.models.heads import ProjectionNet

NETWORK = "network."
"""Prefix of the network's tensors in a client's memory."""


@dataclass(frozen=True)
class SingleSettings:
    """Hyper-parameters of Single-training."""

    tau: float = setting(0.5, "temperature of the contrastive loss (NT-Xent)", gt=0)


class Single(TwoViewMethod):
    """Single-training as a method: the server holds nothing; a client remembers network and optimiser."""

    name = "single"
    title = "Single-training"
    question = Question.REFERENCES
    about = "SimCLR on each client alone."
    local_options = ("steps",)  # the server sends no model that a client could stay near
    Settings = SingleSettings
    settings: SingleSettings
    judges_features = True

    def network(self) -> ProjectionNet:
        """Return a fresh network with the run's initial weights."""
        network = seeded(lambda: ProjectionNet(self.new_encoder()), self.context, cache=self.network_cache)
        return cast(ProjectionNet, network)

    def declared(self, server: Server, client: int, samples: int) -> MessageForm:
        """Return the form of an empty message."""
        return MessageForm()

    def declared_memory(self, server: Server, client: int, samples: int) -> MessageForm:
        """Return the form of the client's network; the optimiser's tensors may stand beside it."""
        return MessageForm(forms_like(weights(self.network(), NETWORK)), others=True)

    def local_steps(self, message: Message, client: Client) -> LocalSteps:
        """Take further local epochs from the network and the optimiser in the client's memory."""
        network = self.network()
        if client.memory:
            load(network, client.memory, NETWORK)

        def finish(taken: TakenSteps) -> Update:
            return Update(Message(), memory=weights(network, NETWORK) | taken.optimiser, metrics=taken.metrics)

        return self.view_steps(client, network, finish, optimiser=client.memory)

    def step_loss(self, model: LocalModel, parameters: Tensors, batch: Batch, extra: Tensors) -> StepResult:
        """Return the contrastive loss of the projections."""
        with self.context.autocast():
            z = model(*batch).z
        return view_contrast(z, self.settings.tau), {}

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Count the round."""
        for _ in updates:
            pass
        return server.next({})

    def embedder(self, memory: Tensors) -> Callable[[Tensor], Tensor]:
        """Return a function from samples x to features (n, d) of a client's encoder, or of the initial one."""
        network = self.network()
        if memory:
            load(network, memory, NETWORK)
        return embed_with(network.encoder.eval(), self.context)

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Return means over clients of the metrics of `evaluate_features`, with `acc_min` and `acc_max`.

        Each client's features are judged over all train and test images of the federation.
        """
        scores: list[dict[str, float]] = []
        for client in clients:
            judged = replace(evaluation, streams=replace(evaluation.streams, client=client.id))
            embed = self.embedder(client.memory)
            scores.append(evaluate_features(embed, judged, self.context.clusters, self.recipe()))
        metrics = {name: sum(score[name] for score in scores) / len(scores) for name in scores[0]}
        if "acc" in metrics:
            metrics["acc_min"] = min(score["acc"] for score in scores)
            metrics["acc_max"] = max(score["acc"] for score in scores)
        return metrics
