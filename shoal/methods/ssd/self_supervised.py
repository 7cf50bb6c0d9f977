"""What federated self-supervised methods share: encoder and projector averaged, and how their features are judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor

from shoal.core.setting import setting
from shoal.data.augment import RECIPES, Recipe, is_small, two_views
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
from shoal.models.encoders import build_encoder
from shoal.models.heads import ProjectionNet

SEEN = 2000
"""Between rounds so many test samples are judged, and so many training samples are learned from and compared."""
FEW_CLIENTS = 10
"""Up to so many clients SSD's authors drop the last partial batch of an epoch; with more, they keep it."""


@dataclass(frozen=True)
class SelfSupervisedSettings:
    """What every self-supervised method may be told."""

    projection: int = setting(0, "output dimension of the projector; 0: that of the features", ge=0)
    hidden: int = setting(0, "hidden dimension of the projector; 0: four times that of the features", ge=0)
    last_batch: Literal["auto", "drop", "keep"] = setting(
        "auto",
        "last batch of a local epoch, where it is smaller than the others: dropped, kept, or (auto) dropped with up to "
        "10 clients and kept with more, as in the code of SSD's authors",
    )
    probe_epochs: int = setting(
        0,
        "number of epochs of the Adam probe that the papers use (200), which is reported as probe_sgd beside the "
        "converged probe in the last evaluation; 0: left out",
        ge=0,
    )
    finetune: bool = setting(False, "fine-tune the encoder with 1 % and 10 % of the labels in the last evaluation")


class SelfSupervised(TwoViewMethod):
    """A method whose server state is one network of encoder and projector, and whose clients send theirs.

    Clients train the broadcast weights on two views; to override: `step_loss`, see `TwoViewMethod`.
    """

    Settings = SelfSupervisedSettings
    local_defaults = LocalSettings(epochs=5, batch=128, optimiser="sgd", lr=0.1, momentum=0.9, weight_decay=1e-4)
    finds_clusters = False
    judges_features = True
    averages = True
    server_optimiser = True
    evaluation_reads_memory = False
    shared_in_evaluation: ClassVar[Shared] = "features"
    settings: Any

    @property
    def needs_clusters(self) -> bool:
        """Features need no number of clusters; where it is known, they are judged by it."""
        return False

    def build(self) -> ProjectionNet:
        """The network, from torch's global generator."""
        c, s = self.context, self.settings
        encoder = build_encoder(c.model.encoder, c.spec.shape)
        width = cast(int, encoder.features)
        return ProjectionNet(encoder, s.projection or width, s.hidden or 4 * width, norm=True)

    def network(self) -> ProjectionNet:
        """A fresh network with the run's initial weights."""
        return cast(ProjectionNet, seeded(self.build, self.context, cache=self.network_cache))

    def recipe(self) -> Recipe:
        """SimCLR's full strength on colour images that are not small, the data set's own on others."""
        shape = self.context.spec.shape
        return view_recipe(self.context, RECIPES["strong"] if shape[0] == 3 and not is_small(shape) else None)

    def init_server(self, federation: Federation) -> Server:
        """The initial weights."""
        return Server(weights(self.network()), facts={"clients": federation.clients})

    def broadcast(self, server: Server, client: int) -> Message:
        """The weights."""
        return Message(server.model, {"clients": server.facts["clients"]})

    def keeps_last_batch(self, message: Message) -> bool:
        """As `method.last_batch` says; `auto` goes by the number of clients."""
        choice = self.settings.last_batch
        result: bool = choice == "keep" or (choice == "auto" and message.facts["clients"] > FEW_CLIENTS)
        return result

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """The mean of the weights by number of samples."""
        return next_average(server, updates, self.context.aggregation, lambda: trained_counts(self.network()))

    def recalibrate(self, server: Server, clients: Clients, evaluation: Evaluation) -> Tensors:
        """BatchNorm's statistics of the averaged network, on the clients' data."""
        network = self.network()
        load(network, server.model)
        return recalibrate(network, clients, evaluation, self.context)

    def embedder(self, server: Server) -> Callable[[Tensor], Tensor]:
        """Samples x to features (n, d) of the encoder, evaluation mode."""
        network = self.network()
        load(network, server.model)
        return embed_with(network.encoder.eval(), self.context)

    def predictor(self, server: Server) -> Callable[[Tensor], Prediction]:
        """Features as `embedding`; these methods have no clusters: `cluster` is -1, `soft` has no column."""
        return features_only(self.embedder(server))

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """kNN, alignment and uniformity of some samples; finally the probe, K-means scores and fine-tuning of all."""
        embed, recipe = self.embedder(server), self.recipe()
        metrics = self.evaluate_between_rounds(embed, recipe, clients, evaluation)
        if not evaluation.final:
            return metrics
        metrics |= evaluate_features(
            embed, evaluation, self.context.known_clusters, recipe, sgd_epochs=self.settings.probe_epochs
        )
        tune = self.settings.finetune and not evaluation.headline_only
        if tune and evaluation.data.test_y is not None and len(evaluation.data.test_x):
            for percent in (1, 10):
                network = self.network()
                load(network, server.model)
                metrics[f"finetune_{percent}"] = finetune_accuracy(network.encoder, evaluation, percent / 100)
        return metrics

    def evaluate_between_rounds(
        self, embed: Callable[[Tensor], Tensor], recipe: Recipe, clients: Clients, evaluation: Evaluation
    ) -> dict[str, float]:
        """What is cheap enough for every round.

        `uniformity` is of test samples (training samples without any); `uniformity_inter` and `uniformity_intra` are
        over pairs of training samples of different clients, and of the same one.
        """
        data, streams = evaluation.data, evaluation.streams
        share = max(1, SEEN // len(clients))
        owners, parts, labels = [], [], []
        for client in clients:
            order = torch.randperm(len(client.train), generator=streams.torch(f"look {client.id}"))[:share]
            mine = client.train.take(order.to(client.train.index.device))
            parts.append(embed(mine.x()))
            owners.append(torch.full((len(mine),), client.id))
            if data.train_y is not None:
                labels.append(mine.y())
        h, owner = torch.cat(parts), torch.cat(owners)
        inter, intra = split_uniformity(h, owner.to(h.device))
        metrics = {"uniformity_inter": inter, "uniformity_intra": intra}
        if len(data.test_x) > 1:
            order = torch.randperm(len(data.test_x), generator=streams.torch("look test"))[:SEEN].to(data.device)
            test_x = data.test_x[order].float().div_(255)
            seen = torch.cat([embed(x) for x in test_x.split(evaluation.batch)])
            if labels and data.test_y is not None:
                metrics["knn"] = knn_accuracy(h, torch.cat(labels), seen, data.test_y[order])
        else:
            seen, test_x = h, torch.cat([clients[k].train.x()[:share] for k in range(len(clients))])
        metrics["uniformity"] = uniformity(seen)
        generator = streams.torch("look views", data.device)
        total = 0.0
        for x in test_x.split(evaluation.batch):
            both = embed(two_views(x, recipe, generator))
            total += alignment(*both.chunk(2)) * len(x)
        return metrics | {"alignment": total / len(test_x)}
