"""FedKMeans: K-means over the vectors of all clients, of which only sums and counts leave a client.

With `evenness` the iterations after the race of starts are those towards clusters of one size: each cluster has a
price, which rises while it has too few samples (see `shoal.methods.clustering.even_k_means`). It is off unless it is
set, since uneven classes must not be forced to be even.

Symbols in shapes: n samples, k dimensions of the space, c clusters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.core.setting import setting
from shoal.methods.clustering.declared_sums import check_soft_iteration
from shoal.methods.clustering.even_k_means import lifted_centres, lifted_samples, moved_prices, soft_sums
from shoal.methods.clustering.federated_k_means import moved_centres, nearest
from shoal.methods.contract.base import Client, Clients, Evaluation, Server
from shoal.methods.contract.declared import MessageForm, TensorForm
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.contract.prediction import Assignment, Prediction
from shoal.methods.contract.questions import Question
from shoal.methods.features.feature_clustering import (
    CENTRES,
    LARGEST,
    STILL,
    FeatureClustering,
    FeatureSettings,
)
from shoal.methods.features.vectors import ClientVectors, SpaceVectors

PRICES = "prices"
"""Among the server's tensors, with evenness once the race is decided: (1, c) float64, in squared distances."""
SOFTNESS = 0.1
"""How softly samples belong to clusters with prices, in mean squared distances."""
UNIT = "unit"
"""Among the server's facts, with prices: the mean squared distance to the nearest centre at the end of the race."""


@dataclass(frozen=True)
class FedKMeansSettings(FeatureSettings):
    """Hyper-parameters of federated K-means."""

    evenness: float = setting(
        0.0,
        "weight of clusters of one size over the federation, in mean squared distances to the nearest centre; 0: "
        "clusters of any size. Set it (0.5, say) only where you know that classes are about equally frequent",
        ge=0,
    )


class FedKMeans(FeatureClustering):
    """Federated K-means as a method: one iteration a round gives what K-means on the pooled vectors would give.

    With `sphere` directions are compared (spherical K-means up to the length of the centres).
    """

    name = "fedkmeans"
    title = "federated K-means"
    question = Question.VECTORS
    about = "K-means over all clients, from sums and counts; takes seconds."
    Settings = FedKMeansSettings
    settings: FedKMeansSettings

    def next_step(self, server: Server) -> str:
        """Return what the round after a state does: measure, start, move, or price (move with prices)."""
        return "price" if PRICES in server.model else super().next_step(server)

    def softness(self, server: Server) -> float:
        """How softly samples belong to clusters, in squared distances."""
        return float(SOFTNESS * server.facts[UNIT])

    def broadcast(self, server: Server, client: int) -> Message:
        """Return the space and the centres, with prices also the softness."""
        message = super().broadcast(server, client)
        if PRICES not in server.model:
            return message
        return replace(message, facts={**message.facts, "softness": self.softness(server)})

    def declared(self, server: Server, client: int, samples: int) -> MessageForm | None:
        """Return the form of an iteration with prices, or of the steps before."""
        if self.next_step(server) != "price":
            return super().declared(server, client, samples)
        limits = self.limits(server, client, samples)
        starts, clusters, width = server.model[CENTRES].shape
        count = partial(TensorForm, dtype=torch.float64, minimum=0, maximum=samples, measured=False)
        forms = {
            "sums": TensorForm((starts, clusters, width), torch.float64, minimum=-LARGEST, maximum=LARGEST),
            "counts": count((starts, clusters)),
            "products": count((starts, clusters, clusters)),
            "value": TensorForm((starts,), torch.float64, minimum=-LARGEST, maximum=LARGEST, measured=False),
        }
        rule = partial(check_soft_iteration, centres=server.model[CENTRES], prices=server.model[PRICES], bounds=None)
        return MessageForm(forms, rule=partial(rule, softness=self.softness(server), limits=limits))

    def work(self, message: Message, client: Client, z: ClientVectors) -> Tensors:
        """Return what a client sends of its vectors z (n, k) in the space."""
        if message.facts["step"] != "price":
            return super().work(message, client, z)
        centres = message.tensors[CENTRES]
        softness = message.facts["softness"]
        min_points = self.settings.min_points
        return soft_sums(
            torch.cat(list(z.blocks())), centres, message.tensors[PRICES], softness, min_points=min_points
        )._asdict()

    def moved(self, server: Server, sums: Tensors) -> Server:
        """Return the state after one iteration, with prices once the race is decided."""
        if PRICES in server.model:
            return self.moved_with_prices(server, sums)
        after = super().moved(server, sums)
        if not self.settings.evenness or len(after.model[CENTRES]) > 1:
            return after
        best = int(sums["inertia"].argmin())
        unit = float((sums["inertia"][best] + sums["cheapest"]) / sums["counts"][best].sum())
        prices = torch.zeros(after.model[CENTRES].shape[:2], dtype=torch.float64)
        # A unit of 0: every sample is a centre, and there is nothing to make even.
        if unit <= 0:
            return after
        return replace(after, model={**after.model, PRICES: prices}, facts={**after.facts, UNIT: unit}, finished=False)

    def moved_with_prices(self, server: Server, sums: Tensors) -> Server:
        """Return the state after one iteration with prices, finished once neither centres nor prices move."""
        before = server.model[CENTRES]
        after = moved_centres(before, sums["sums"], sums["counts"])
        prices = server.model[PRICES]
        unit = float(server.facts[UNIT])
        risen = moved_prices(
            prices, sums["counts"], sums["products"], self.softness(server), self.settings.evenness * unit
        )
        still = bool((after - before).abs().max() <= STILL * after.std())
        still = still and bool((risen - prices).abs().max() <= STILL * unit)
        return server.next({**server.model, CENTRES: after, PRICES: risen}, finished=still)

    def after_iteration(self, server: Server) -> Server:
        """Return the state, finished once the centres stand still."""
        return Server(server.model, server.state, server.facts, server.round, finished=bool(server.facts["still"]))

    def centres(self, server: Server) -> Tensor:
        """Return the centres (c, k) of the best start; with prices (c, k + 1), of which the nearest is the cheapest."""
        centres = super().centres(server)
        if PRICES not in server.model:
            return centres
        return lifted_centres(centres, server.model[PRICES][0].to(centres.device))

    def assign(self, server: Server, z: Tensor) -> Prediction:
        """Return the cheapest cluster of each vector z (n, k) in the space, as a hard assignment."""
        if PRICES not in server.model:
            return super().assign(server, z)
        centres = self.centres(server)
        lifted = lifted_samples(z)
        cluster = nearest(lifted, centres[None])[0][0]
        return Prediction(cluster, F.one_hot(cluster, len(centres)).float(), lifted.float())

    def assignment(self, server: Server, clients: Clients, evaluation: Evaluation) -> Assignment:
        """Return the cluster of every sample; with prices its features and the centres have a column more."""
        found = super().assignment(server, clients, evaluation)
        if PRICES not in server.model:
            return found
        vectors = self.judged_vectors(server, clients, evaluation)

        def lifted(positions: Tensor) -> Tensor:
            return lifted_samples(torch.from_numpy(vectors.take(positions.numpy())))

        return replace(found, features=SpaceVectors(len(vectors), vectors.shape[1] + 1, lifted))
