"""Base of federated self-supervised methods: the server averages encoder and projector, and judges the features."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from shoal.data.views.augment import RECIPES, AnyRecipe, is_small, two_views
from shoal.methods.averaging.server_optimiser import next_average, trained_counts
from shoal.methods.contract.base import Clients, Evaluation, Federation, Server, Update
from shoal.methods.contract.context import LocalSettings
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.contract.prediction import Prediction, Shared
from shoal.methods.scores.evaluation import embed_with, evaluate_features, features_only
from shoal.methods.scores.finetuning import finetune_accuracy
from shoal.methods.scores.recalibration import recalibrate
from shoal.methods.scores.representation import alignment, knn_accuracy, split_uniformity, uniformity
from shoal.methods.training.local import load, seeded, view_recipe, weights
from shoal.methods.training.two_views import TwoViewMethod
from shoal.models.heads import ProjectionNet

SAMPLES_BETWEEN_ROUNDS = 2000
"""How many test samples an evaluation between rounds judges at most, and from how many training samples it learns."""
FEW_CLIENTS = 10
"""With at most so many clients SSD's authors drop the last partial batch of an epoch; with more they keep it."""
HIDDEN_FACTOR = 4
"""The hidden layer of the projector is so many times as wide as the features; its output is as wide as these."""


class SelfSupervised(TwoViewMethod):
    """A method whose server state is one network of encoder and projector, and whose clients send theirs.

    Clients train the broadcast weights on two views. Subclasses override `step_loss`, see `TwoViewMethod`.
    """

    local_defaults = LocalSettings(epochs=5, batch=128, optimiser="sgd", lr=0.1, momentum=0.9, weight_decay=1e-4)
    starts_pretrained = True
    finds_clusters = False
    judges_features = True
    averages = True
    server_optimiser = True
    evaluation_reads_memory = False
    shared_in_evaluation: ClassVar[Shared] = "features"
    settings: Any

    @property
    def needs_clusters(self) -> bool:
        """Return False: features need no number of clusters. Where the number is known, K-means judges them by it."""
        return False

    def build(self) -> ProjectionNet:
        """Build the network; its initial weights come from torch's global generator."""
        encoder = self.new_encoder()
        width = cast(int, encoder.features)
        return ProjectionNet(encoder, width, HIDDEN_FACTOR * width, norm=True)

    def network(self) -> ProjectionNet:
        """Build a network with the run's initial weights."""
        return cast(ProjectionNet, seeded(self.build, self.context, cache=self.network_cache))

    def recipe(self) -> AnyRecipe:
        """Return SimCLR's full strength for colour images that are not small, else the recipe of the data set."""
        shape = self.context.spec.shape
        strong = len(shape) == 3 and shape[0] == 3 and not is_small(shape)
        return view_recipe(self.context, RECIPES["strong"] if strong else None)

    def init_server(self, federation: Federation) -> Server:
        """Start from the initial weights."""
        return Server(weights(self.network()), facts={"clients": federation.clients})

    def broadcast(self, server: Server, client: int) -> Message:
        """Send the weights."""
        return Message(server.model, {"clients": server.facts["clients"]})

    def keeps_last_batch(self, message: Message) -> bool:
        """Return whether an epoch ends with a smaller batch: with many clients, as in the code of SSD's authors."""
        return int(message.facts["clients"]) > FEW_CLIENTS

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Average the weights by number of samples."""
        return next_average(server, updates, self.context.aggregation, lambda: trained_counts(self.network()))

    def recalibrate(self, server: Server, clients: Clients, evaluation: Evaluation) -> Tensors:
        """Find BatchNorm's statistics of the averaged network on the clients' data."""
        network = self.network()
        load(network, server.model)
        return recalibrate(network, clients, evaluation, self.context)

    def embedder(self, server: Server) -> Callable[[Tensor], Tensor]:
        """Return a function from samples x to features (n, d) of the encoder in evaluation mode."""
        network = self.network()
        load(network, server.model)
        return embed_with(network.encoder.eval(), self.context)

    def predictor(self, server: Server) -> Callable[[Tensor], Prediction]:
        """Return a function from samples to features as `embedding`; `cluster` is -1 and `soft` has no column."""
        return features_only(self.embedder(server))

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Return kNN, alignment and uniformity of some samples; at the end also what all samples say.

        The last evaluation adds the probe and the K-means scores, and fine-tuning where `evaluate.finetune` is set.
        """
        embed = self.embedder(server)
        recipe = self.recipe()
        metrics = self.evaluate_between_rounds(embed, recipe, clients, evaluation)
        if not evaluation.final:
            return metrics
        metrics |= evaluate_features(embed, evaluation, self.context.known_clusters, recipe)
        if evaluation.finetune and not evaluation.headline_only:
            metrics |= self.finetuned(server, evaluation)
        return metrics

    def finetuned(self, server: Server, evaluation: Evaluation) -> dict[str, float]:
        """Return `finetune_1` and `finetune_10`: test accuracy after fine-tuning with 1 % and 10 % of the labels."""
        if evaluation.data.test_y is None or not len(evaluation.data.test_x):
            return {}
        metrics = {}
        for percent in (1, 10):
            network = self.network()
            load(network, server.model)
            metrics[f"finetune_{percent}"] = finetune_accuracy(network.encoder, evaluation, percent / 100)
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
        if len(data.test_x) > 1:
            order = torch.randperm(len(data.test_x), generator=streams.torch("look test"))[:SAMPLES_BETWEEN_ROUNDS].to(
                data.device
            )
            judged_x = data.computable(data.test_x[order])
            judged_h = torch.cat([embed(x) for x in judged_x.split(evaluation.batch)])
            if labels and data.test_y is not None:
                metrics["knn"] = knn_accuracy(h, torch.cat(labels), judged_h, data.test_y[order])
        else:
            judged_x = torch.cat([clients[k].train.x()[:share] for k in range(len(clients))])
            judged_h = h
        metrics["uniformity"] = uniformity(judged_h)
        generator = streams.torch("look views", data.device)
        total = 0.0
        for x in judged_x.split(evaluation.batch):
            both = embed(two_views(x, recipe, generator))
            total += alignment(*both.chunk(2)) * len(x)
        return metrics | {"alignment": total / len(judged_x)}
