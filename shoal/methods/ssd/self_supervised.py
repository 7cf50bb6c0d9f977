"""Base of federated self-supervised methods: the server averages encoder and projector, and judges the features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from shoal.data.views.augment import RECIPES, AnyRecipe, is_small, two_views
from shoal.methods.averaging.averaged_network import AveragedNetwork
from shoal.methods.contract.base import Clients, Evaluation, Federation, Server
from shoal.methods.contract.context import LocalSettings
from shoal.methods.contract.message import Message
from shoal.methods.contract.prediction import Prediction
from shoal.methods.scores.evaluation import embed_with, evaluate_features, features_only
from shoal.methods.scores.representation import alignment, knn_accuracy, split_uniformity, uniformity
from shoal.methods.training.local import view_recipe
from shoal.models.heads import ProjectionNet

SAMPLES_BETWEEN_ROUNDS = 2000
"""How many test samples an evaluation between rounds judges at most, and from how many training samples it learns."""
FEW_CLIENTS = 10
"""With at most so many clients SSD's authors drop the last partial batch of an epoch; with more they keep it."""
HIDDEN_FACTOR = 4
"""The hidden layer of the projector is so many times as wide as the features; its output is as wide as these."""


class SelfSupervised(AveragedNetwork):
    """A method whose server state is one network of encoder and projector, and whose clients send theirs.

    Clients train the broadcast weights on two views. Subclasses override `step_loss`, see `AveragedNetwork`.
    """

    local_defaults = LocalSettings(epochs=5, batch=128, optimiser="sgd", lr=0.1, momentum=0.9, weight_decay=1e-4)
    finds_clusters = False
    needs_clusters = False  # where the number is known, K-means judges features by it
    settings: Any

    def build(self) -> ProjectionNet:
        """Build the network; its initial weights come from torch's global generator."""
        encoder = self.new_encoder()
        width = cast(int, encoder.features)
        return ProjectionNet(encoder, width, HIDDEN_FACTOR * width, norm=True)

    def recipe(self) -> AnyRecipe:
        """Return SimCLR's full strength for colour images that are not small, else the recipe of the data set."""
        shape = self.context.spec.shape
        strong = len(shape) == 3 and shape[0] == 3 and not is_small(shape)
        return view_recipe(self.context, RECIPES["strong"] if strong else None)

    def init_server(self, federation: Federation) -> Server:
        """Start from the initial weights."""
        return replace(super().init_server(federation), facts={"clients": federation.clients})

    def broadcast(self, server: Server, client: int) -> Message:
        """Send the weights."""
        return Message(server.model, {"clients": server.facts["clients"]})

    def keeps_last_batch(self, message: Message) -> bool:
        """Return whether an epoch ends with a smaller batch: with many clients, as in the code of SSD's authors."""
        return int(message.facts["clients"]) > FEW_CLIENTS

    def embedder(self, server: Server) -> Callable[[Tensor], Tensor]:
        """Return a function from samples x to features (n, d) of the encoder in evaluation mode."""
        return embed_with(self.loaded(server.model).encoder.eval(), self.context)

    def predictor(self, server: Server) -> Callable[[Tensor], Prediction]:
        """Return a function from samples to features as `embedding`; `cluster` is -1 and `soft` has no column."""
        return features_only(self.embedder(server))

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Return kNN, alignment and uniformity of some samples; at the end also the probe and the K-means scores."""
        embed = self.embedder(server)
        recipe = self.recipe()
        metrics = self.evaluate_between_rounds(embed, recipe, clients, evaluation)
        if evaluation.final:
            metrics |= evaluate_features(embed, evaluation, self.context.known_clusters, recipe)
        return metrics

    def evaluate_between_rounds(
        self, embed: Callable[[Tensor], Tensor], recipe: AnyRecipe, clients: Clients, evaluation: Evaluation
    ) -> dict[str, float]:
        """Return the metrics that are cheap enough for every round.

        `uniformity` is of test samples, or of training samples where there are none. `uniformity_inter` and
        `uniformity_intra` are over pairs of training samples of different clients, and of the same client.
        """
        data = evaluation.data
        streams = evaluation.streams
        share = max(1, SAMPLES_BETWEEN_ROUNDS // len(clients))
        owners = []
        parts = []
        labels = []
        for client in clients:
            order = torch.randperm(len(client.train), generator=streams.torch(f"look {client.id}"))[:share]
            mine = client.train.take(order.to(client.train.index.device))
            parts.append(embed(mine.x()))
            owners.append(torch.full((len(mine),), client.id))
            if data.train_y is not None:
                labels.append(mine.y())
        h = torch.cat(parts)
        inter, intra = split_uniformity(h, torch.cat(owners).to(h.device))
        metrics = {"uniformity_inter": inter, "uniformity_intra": intra}
        if evaluation.at_site is not None and len(parts) < 2:
            del metrics["uniformity_inter"]  # of a single client there is no such pair
        if len(data.test_x) > 1:
            order = torch.randperm(len(data.test_x), generator=streams.torch("look test"))[:SAMPLES_BETWEEN_ROUNDS].to(
                data.device
            )
            judged_x = data.computable(data.test_x[order])
            judged_h = torch.cat([embed(x) for x in judged_x.split(evaluation.batch)])
            if labels and data.test_y is not None:
                metrics["knn"] = knn_accuracy(h, torch.cat(labels), judged_h, data.test_y[order])
        else:
            judged_x = torch.cat([client.train.x()[:share] for client in clients])
            judged_h = h
        metrics["uniformity"] = uniformity(judged_h)
        generator = streams.torch("look views", data.device)
        total = 0.0
        for x in judged_x.split(evaluation.batch):
            both = embed(two_views(x, recipe, generator))
            total += alignment(*both.chunk(2)) * len(x)
        return metrics | {"alignment": total / len(judged_x)}
