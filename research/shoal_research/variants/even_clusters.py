"""FedSimCLR with federated K-means towards clusters of one size: each has a price (see `even_k_means`).

Classes are often about even over the federation where they are even in no client. Where they are uneven over the
federation, prices would force them even. Half way through the iterations the server therefore looks at the sizes that
clusters keep against their prices: where these still differ much (`UNEVEN_SIZES`), it drops prices and whitening, and
plain K-means starts again among the principal components as they are. The larger the evenness, the less sizes can
differ, so that a large one always forces clusters of one size.

Symbols in shapes: n samples, k components, c clusters, s starts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.core.setting import setting
from shoal.methods.clustering.federated_k_means import moved_centres, nearest
from shoal.methods.contract.base import Client, Clients, Evaluation, Server, Update
from shoal.methods.contract.declared import MessageForm, TensorForm
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.contract.prediction import Prediction
from shoal.methods.ssd.fedsimclr_kmeans import (
    CENTRES,
    MAX_REST_MOVE,
    PROJECTION,
    FedSimCLRKMeans,
    FedSimCLRKMeansSettings,
    clustered,
)
from shoal_research.variants.even_k_means import cost, lifted_centres, lifted_samples, moved_prices, soft_sums

PRICES = "kmeans.prices"
"""Server tensor (s, c) float64: the prices of every start's clusters."""
SOFTNESS = 0.05
"""How softly samples belong to clusters with prices, in squared distances.

Where two clusters differ by this much, a sample belongs to the dearer one by 1/e as much as to the other.
"""
UNEVEN_SIZES = 0.1
"""Standard deviation of the logarithms of the clusters' sizes above which prices do not fit the data.

On digits, four seeds, it is 0.05 to 0.09 with even classes and 0.14 to 0.25 with each class 0.75 times the one before.
"""
MIN_PRICED_MOVES = 5
"""Iterations after which prices have about settled."""


@dataclass(frozen=True)
class EvenSettings(FedSimCLRKMeansSettings):
    """Hyper-parameters of FedSimCLR with federated K-means, and of its prices."""

    evenness: float = setting(
        0.2,
        "weight of clusters of one size over the federation, in squared distances: a cluster half as large as the mean "
        "draws samples by 0.7 times this; dropped where the sizes stay uneven all the same",
        gt=0,
    )


class EvenFedSimCLRKMeans(FedSimCLRKMeans):
    """FedSimCLR with federated K-means whose clusters have prices."""

    name = "fedsimclr_even"
    title = "FedSimCLR, then federated K-means towards one size"
    about = "Trains an encoder, then finds clusters of about one size in its features over all clients."
    Settings = EvenSettings
    settings: EvenSettings
    of_the_server = ("cluster_prices",)

    @property
    def last_priced_move(self) -> int:
        """The iteration after which prices that do not fit the data are dropped; 0: there are too few iterations."""
        iterations = self.context.rounds - self.training_rounds - 2
        if iterations < 2 * MIN_PRICED_MOVES:
            return 0
        return iterations // 2

    def declared(self, server: Server, client: int, samples: int) -> MessageForm:
        """Declare the sums of one iteration with prices, or what plain K-means has."""
        if PRICES not in server.model:
            return super().declared(server, client, samples)
        starts, clusters, width = server.model[CENTRES].shape
        count = partial(TensorForm, dtype=torch.float64, minimum=0, maximum=samples, measured=False)
        return MessageForm(
            {
                "sums": TensorForm((starts, clusters, width), torch.float64),
                "counts": count((starts, clusters)),
                "products": count((starts, clusters, clusters)),
                "value": TensorForm((starts,), torch.float64, measured=False),
            }
        )

    def client_update(self, message: Message, client: Client) -> Update:
        """Send sums, counts and scores of one iteration with prices, or what plain K-means has."""
        if PRICES not in message.tensors:
            return super().client_update(message, client)
        features, memory = self.features(message, client)
        centres = message.tensors[CENTRES]
        prices = message.tensors[PRICES]
        x = clustered(features, message.tensors)
        sums = soft_sums(x, centres, prices, SOFTNESS, min_points=self.settings.min_points)._asdict()
        return Update(Message({name: t.cpu() for name, t in sums.items()}), memory=memory)

    def start_k_means(self, server: Server, updates: Sequence[Update]) -> Server:
        """Return the state with centres for every start, and prices of 0 unless these have been dropped."""
        started = super().start_k_means(server, updates)
        if server.facts.get("uneven"):
            return started
        return started.with_model({PRICES: torch.zeros(started.model[CENTRES].shape[:2], dtype=torch.float64)})

    def move_centres(self, server: Server, total: Tensors) -> Server:
        """Return the state after one iteration with the sums of all clients; finished where the best start rests."""
        if PRICES not in server.model:
            return super().move_centres(server, total)
        prices = server.model[PRICES]
        counts = total["counts"]
        evenness = self.settings.evenness
        moves = int(server.facts.get("moves", 0)) + 1
        costs = cost(total["value"], prices, counts, evenness)
        best = int(costs.argmin())
        moved = {
            CENTRES: moved_centres(server.model[CENTRES], total["sums"], counts),
            PRICES: moved_prices(prices, counts, total["products"], SOFTNESS, evenness),
        }
        rests = all(
            bool((to[best] - server.model[name][best]).abs().max() <= MAX_REST_MOVE) for name, to in moved.items()
        )
        if moves == self.last_priced_move or (rests and moves < self.last_priced_move):
            sizes = moved[PRICES][best] / evenness  # their logarithms, up to a constant
            if float(sizes.std(correction=0)) > UNEVEN_SIZES:
                return without_prices(server)
        facts = server.facts | {"inertia": costs.tolist(), "best": best, "moves": moves}
        return server.next({**server.model, **moved}, facts=facts, finished=rests)

    def centres(self, server: Server) -> Tensor | None:
        """Return the centres of the best start, with prices in one more dimension, in which every sample is at 0."""
        centres = super().centres(server)
        if centres is None or PRICES not in server.model:
            return centres
        return lifted_centres(centres, server.model[PRICES][server.facts.get("best", 0)])

    def predictor(self, server: Server) -> Callable[[Tensor], Prediction]:
        """Return a function that assigns samples to the cheapest cluster where there are prices."""
        lifted = self.centres(server)
        if lifted is None or PRICES not in server.model:
            return super().predictor(server)
        embed = self.embedder(server)
        centres = lifted.to(self.context.device)

        def predict(x: Tensor) -> Prediction:
            h = lifted_samples(clustered(embed(x), server.model))
            cluster = nearest(h, centres[None])[0][0]
            return Prediction(cluster, F.one_hot(cluster, len(centres)).float(), h.float())

        return predict

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Return the scores, and once there are clusters whether they have prices."""
        metrics = super().evaluate(server, clients, evaluation)
        return metrics if self.centres(server) is None else metrics | {"cluster_prices": float(PRICES in server.model)}


def without_prices(server: Server) -> Server:
    """Return the state from which plain K-means starts again, among the components as they are."""
    model = {name: tensor for name, tensor in server.model.items() if name not in (CENTRES, PRICES)}
    # Whitening scaled the directions, which are orthonormal.
    model[PROJECTION] = F.normalize(model[PROJECTION], dim=0)
    facts = {name: value for name, value in server.facts.items() if name not in ("inertia", "best", "moves")}
    return server.next(model, facts={**facts, "uneven": True})
