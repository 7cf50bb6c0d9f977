"""FedSimCLR, then federated K-means over what it has learnt: a federated clustering in which nothing is pooled.

The first rounds are FedSimCLR's. In the last `kmeans_rounds` the encoder stays as it is. First clients send the moments
of their features, from which the server finds the principal components of all; in these, whitened and of unit length,
clients cluster their own samples and send centres and counts, from which the server starts; then each round is one
iteration of K-means, for which clients send the sums and counts of their clusters. Several starts go on side by side,
and the one that costs least counts, by the sum of squared distances.

The idea: under uneven clients averaged features stay good where averaged cluster heads do not, since the heads of
clients that hold different classes disagree on which output means what.

Classes are often about even over the federation where they are not in any client, and so may clusters be (`evenness`):
each has a price, which the server raises where too few samples come. FedCC's heads are trained towards clusters of one
size too, but over one client's samples at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.core.setting import setting
from shoal.core.streams import Streams
from shoal.methods.clustering.even_k_means import cost, lifted_centres, lifted_samples, moved_prices, soft_sums
from shoal.methods.clustering.federated_k_means import (
    Moments,
    cluster_sums,
    moments,
    moved_centres,
    nearest,
    starting_centres,
    whitening,
)
from shoal.methods.clustering.k_means import kmeans
from shoal.methods.contract.base import Client, ClientError, Clients, Evaluation, Method, Server, Update
from shoal.methods.contract.context import Context, MethodError
from shoal.methods.contract.declared import MessageForm, TensorForm, exactly, forms_like
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.contract.prediction import Assignment, Prediction
from shoal.methods.scores.assignment import assign_samples
from shoal.methods.scores.evaluation import evaluate_predictor
from shoal.methods.ssd.declared_sums import iteration, local_centres, no_negative_squares, score_bounds
from shoal.methods.ssd.fedsimclr import FedSimCLR, FedSimCLRSettings

CENTRES = "kmeans.centres"
"""Among the server's tensors: (s, c, k) float64, the centres of every start."""
PRICES = "kmeans.prices"
"""Among the server's tensors with `evenness`: (s, c) float64, the prices of every start's clusters."""
MEAN, PROJECTION = "kmeans.mean", "kmeans.projection"
"""Among the server's tensors: (d,) and (d, k) float64, which make of features what is clustered."""
OURS = (CENTRES, PRICES, MEAN, PROJECTION)
FEATURES = "features"
"""In a client's memory: (n, d) float32, what the finished encoder makes of its samples."""
ROWS = 512
"""Samples in one forward pass."""
Step = Literal["train", "measure", "start", "move"]
"""What a round does: learn features, measure them, start K-means, or take one iteration of it."""
STILL = 1e-9
"""K-means is done when no centre of the best start has moved by more than this."""


@dataclass(frozen=True)
class FedSimCLRKMeansSettings(FedSimCLRSettings):
    """Hyper-parameters of FedSimCLR with federated K-means."""

    kmeans_rounds: int = setting(
        20,
        "number of last rounds of the run that leave the encoder as it is and find the clusters by federated K-means; "
        "at least one round trains, however few there are",
        ge=3,
    )
    components: int = setting(
        32,
        "number of principal components of the features, whitened and then scaled to unit length, among which clusters "
        "are found; 0: among the features as they are",
        ge=0,
    )
    whitening: float = setting(
        0.75,
        "how far the variances v of the components are made equal: they become v^(1 - whitening), so that 1 makes all "
        "of them 1 and 0 leaves them as they are",
        ge=0,
        le=1,
    )
    evenness: float = setting(
        0.2,
        "how much of a squared distance among clusters is given up for clusters of one size over the federation; a "
        "cluster half as large as the mean draws samples by 0.7 times this; 0: K-means as it is, with clusters of any "
        "size",
        ge=0,
    )
    softness: float = setting(
        0.05,
        "with evenness, how softly samples belong to clusters, in squared distances: of two clusters that differ by as "
        "much a sample belongs to the dearer one by 1/e as much as to the other",
        gt=0,
    )
    starts: int = setting(
        30,
        "number of K-means starts that go on side by side, of which the one counts that costs least: the sum of "
        "squared distances, with evenness also what uneven sizes cost",
        ge=1,
    )
    least_points: int = setting(
        2,
        "smallest number of a client's samples in a cluster of which it sends a centre or a sum; smaller ones would "
        "tell of single samples",
        ge=1,
    )


class FedSimCLRKMeans(FedSimCLR):
    """FedSimCLR with federated K-means as a method.

    Server state: encoder and projector; once the encoder rests also mean and projection of the features, then the
    centres of every start (and the prices of its clusters), and as facts their sums of squared distances (or what
    they cost) and which clients have the encoder. A client's memory holds the features of its samples then.
    """

    name = "fedsimclr_kmeans"
    Settings = FedSimCLRKMeansSettings
    shared_in_evaluation = "nothing"  # its last evaluation asks for the features of two models
    settings: FedSimCLRKMeansSettings
    averages = False  # the last rounds move centres
    averages_parts = True
    loss_falls = False  # they have no loss

    def __init__(self, settings: FedSimCLRKMeansSettings, context: Context) -> None:
        """As of `Method`.

        Raises:
            MethodError: evenness among features that are not of unit length.
        """
        if settings.evenness and not settings.components:
            raise MethodError(
                f"method.evenness {settings.evenness} is in squared distances of features of unit length, and "
                "method.components 0 leaves features as they are: set method.evenness 0, or method.components above 0"
            )
        super().__init__(settings, context)

    @property
    def even(self) -> bool:
        """Whether clusters have prices."""
        return self.settings.evenness > 0

    @property
    def needs_clusters(self) -> bool:
        """K-means finds a given number."""
        return True

    @property
    def training_rounds(self) -> int:
        """How many rounds train the encoder."""
        return max(1, self.context.rounds - self.settings.kmeans_rounds)

    def next_step(self, server: Server) -> Step:
        """What the round after a state does."""
        if server.round < self.training_rounds:
            return "train"
        if self.settings.components and PROJECTION not in server.model:
            return "measure"
        return "move" if CENTRES in server.model else "start"

    def stage(self, server: Server) -> str:
        """As of `next_step`."""
        return self.next_step(server)

    def broadcast(self, server: Server, client: int) -> Message:
        """The network; once a client has it for good, what is clustered by and the centres alone."""
        facts = {"clients": server.facts["clients"], "step": self.next_step(server)}
        network = {} if client in server.facts.get("have", ()) else network_of(server.model)
        return Message(network | {name: t for name, t in server.model.items() if name in OURS}, facts)

    def declared(self, server: Server, client: int, samples: int) -> MessageForm | None:
        """Weights while the encoder is trained; then moments, local centres, or sums."""
        step, double = self.next_step(server), torch.float64
        if step == "train":
            return MessageForm(forms_like(network_of(server.model)), {"n": exactly(samples)})
        count = partial(TensorForm, dtype=double, minimum=0, maximum=samples, measured=False)
        if step == "measure":
            width = int(self.network().encoder.features)  # type: ignore[arg-type]
            squares = TensorForm((width, width), double)
            forms = {"samples": count(()), "total": TensorForm((width,), double), "outer": squares}
            return MessageForm(forms, rule=no_negative_squares)
        clusters = self.context.clusters
        if step == "start":
            width = int(self.network().encoder.features)  # type: ignore[arg-type]
            width = server.model[PROJECTION].shape[1] if PROJECTION in server.model else width
            sizes = range(clusters + 1)
            forms = {"centres": TensorForm((sizes, width), double), "counts": count((sizes,))}
            unit = PROJECTION in server.model
            return MessageForm(forms, rule=partial(local_centres, unit=unit))
        starts, _, width = server.model[CENTRES].shape
        forms = {"sums": TensorForm((starts, clusters, width), double), "counts": count((starts, clusters))}
        score = "value" if self.even else "inertia"
        forms[score] = TensorForm((starts,), double, minimum=-torch.inf if self.even else 0, measured=False)
        if self.even:
            forms["products"] = count((starts, clusters, clusters))
        return MessageForm(forms, rule=partial(iteration, score=score, bounds=self.score_bounds(server, samples)))

    def score_bounds(self, server: Server, samples: int) -> tuple[Tensor, Tensor] | None:
        """What a client's samples can cost under each start, see `score_bounds`; None: nothing bounds it."""
        if PROJECTION not in server.model:
            return None  # features are as long as they are
        prices = server.model[PRICES] if self.even else None
        return score_bounds(server.model[CENTRES], prices, self.settings.softness, samples)

    def client_update(self, message: Message, client: Client) -> Update:
        """FedSimCLR's local epochs; or moments; or local centres to start from; or sums of one K-means iteration."""
        step, least = message.facts["step"], self.settings.least_points
        if step == "train":
            return super().client_update(message, client)
        features, memory = self.features(message, client)
        if step == "measure":
            tensors = moments(features if len(features) >= least else features[:0])._asdict()
        elif step == "start":
            tensors = self.local_centres(clustered(features, message.tensors), client)
        else:
            x, centres = clustered(features, message.tensors), message.tensors[CENTRES]
            tensors = (
                soft_sums(x, centres, message.tensors[PRICES], self.settings.softness, least=least)._asdict()
                if self.even
                else cluster_sums(x, centres, least=least)._asdict()
            )
        return Update(Message({name: t.cpu() for name, t in tensors.items()}), memory=memory)

    def cohort_update(self, cohort: Sequence[tuple[Message, Client]]) -> list[Update | Exception]:
        """Several clients' steps in one computation; what finds the clusters client after client."""
        if all(message.facts["step"] == "train" for message, _ in cohort):
            return super().cohort_update(cohort)
        return Method.cohort_update(self, cohort)

    def local_centres(self, x: Tensor, client: Client) -> Tensors:
        """A client's own K-means: `centres` (at most c, k) and how many samples are behind each, `counts`, float64."""
        found = kmeans(x.cpu().numpy(), min(self.context.clusters, len(x)), client.streams.numpy("kmeans"))
        counts = torch.bincount(torch.from_numpy(found.cluster), minlength=len(found.centres)).double()
        told = counts >= self.settings.least_points
        return {"centres": torch.from_numpy(found.centres).double()[told], "counts": counts[told]}

    def features(self, message: Message, client: Client) -> tuple[Tensor, Tensors | None]:
        """What the finished encoder makes of the client's samples (n, d), and the memory to keep, where it is new.

        Raises:
            ClientError: no sample, or features that are not finite.
        """
        if FEATURES in client.memory:
            return client.memory[FEATURES], None
        h = self.own_features(message, client)
        return h, {FEATURES: h.cpu()}

    def own_features(self, message: Message, client: Client) -> Tensor:
        """What the broadcast encoder makes of the client's samples (n, d), evaluation mode.

        Raises:
            ClientError: no sample, or features that are not finite.
        """
        if not len(client.train):
            raise ClientError(f"client {client.id} has no training samples to cluster")
        embed = self.embedder(Server(message.tensors))
        positions = torch.arange(len(client.train), device=client.train.index.device)
        h = torch.cat([embed(client.train.x(part)) for part in positions.split(ROWS)])
        if not torch.isfinite(h).all():
            raise ClientError(f"client {client.id} has features that are not finite")
        return h

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """The mean of the weights; or the projection; or starts from the clients' centres; or all centres moved."""
        step = self.next_step(server)
        if step == "train":
            return super().aggregate(server, updates)
        came = list(updates)  # a few vectors each
        have = sorted({*server.facts.get("have", ()), *(update.client for update in came)})
        facts = {**server.facts, "have": have}
        if step == "start":
            local, counts = (torch.cat([u.message.tensors[name] for u in came]) for name in ("centres", "counts"))
            rng = Streams(self.context.seed).numpy("kmeans server")
            centres = starting_centres(local, counts, self.context.clusters, self.settings.starts, rng)
            free = {PRICES: torch.zeros(centres.shape[:2], dtype=torch.float64)} if self.even else {}
            return server.next({**server.model, CENTRES: centres, **free}, facts=facts)
        whole = {name: torch.stack([u.message.tensors[name] for u in came]).sum(0) for name in came[0].message.tensors}
        if step == "measure":
            mean, projection = whitening(Moments(**whole), self.settings.components, self.settings.whitening)
            return server.next({**server.model, MEAN: mean, PROJECTION: projection}, facts=facts)
        moved = {CENTRES: moved_centres(server.model[CENTRES], whole["sums"], whole["counts"])}
        if self.even:
            prices, counts, evenness = server.model[PRICES], whole["counts"], self.settings.evenness
            paid = cost(whole["value"], prices, counts, evenness)
            moved[PRICES] = moved_prices(prices, counts, whole["products"], self.settings.softness, evenness)
        else:
            paid = whole["inertia"]
        best = int(paid.argmin())
        still = all(bool((to[best] - server.model[name][best]).abs().max() <= STILL) for name, to in moved.items())
        facts |= {"inertia": paid.tolist(), "best": best}
        return server.next({**server.model, **moved}, facts=facts, finished=still)

    def embedder(self, server: Server) -> Callable[[Tensor], Tensor]:
        """Samples x to features (n, d) of the encoder, evaluation mode."""
        return super().embedder(replace(server, model=network_of(server.model)))

    def recalibrate(self, server: Server, clients: Clients, evaluation: Evaluation) -> Tensors:
        """BatchNorm's statistics while the encoder is trained; clusters are of features under the averaged ones."""
        return {} if self.next_step(server) != "train" else super().recalibrate(server, clients, evaluation)

    def centres(self, server: Server) -> Tensor | None:
        """The centres (c, d) of the best start, float64; None before K-means has begun.

        With `evenness` they have one dimension more, in which every sample is at 0, so that the nearest centre is that
        of the cheapest cluster.
        """
        if CENTRES not in server.model:
            return None
        best = server.facts.get("best", 0)
        centres = server.model[CENTRES][best]
        return lifted_centres(centres, server.model[PRICES][best]) if self.even else centres

    def predictor(self, server: Server) -> Callable[[Tensor], Prediction]:
        """The nearest centre, as a hard assignment; before K-means has begun FedSimCLR's."""
        centres = self.centres(server)
        if centres is None:
            return super().predictor(server)
        embed, centres = self.embedder(server), centres.to(self.context.device)

        def predict(x: Tensor) -> Prediction:
            h = clustered(embed(x), server.model)
            h = lifted_samples(h) if self.even else h
            cluster = nearest(h, centres[None])[0][0]
            return Prediction(cluster, F.one_hot(cluster, len(centres)).float(), h.float())

        return predict

    def assignment(self, server: Server, clients: Clients, evaluation: Evaluation) -> Assignment | None:
        """The nearest centre; before K-means has begun None."""
        centres = self.centres(server)
        if centres is None:
            return None
        return assign_samples(self.predictor(server), evaluation, None, centres=centres)

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """FedSimCLR's metrics while it trains; then those of the clusters, and finally both."""
        if self.centres(server) is None:
            return super().evaluate(server, clients, evaluation)
        found = evaluate_predictor(self.predictor(server), replace(evaluation, final=False))
        return (super().evaluate(server, clients, evaluation) | found) if evaluation.final else found


def network_of(tensors: Tensors) -> Tensors:
    """The network's tensors alone."""
    return {name: tensor for name, tensor in tensors.items() if name not in OURS}


def clustered(features: Tensor, tensors: Tensors) -> Tensor:
    """What is clustered (n, k), float64: features (n, d) projected and of unit length, or as they are.

    Args:
        features: of the encoder.
        tensors: of the server, or of its message.
    """
    if PROJECTION not in tensors:
        return features.double()
    mean, projection = (tensors[name].to(features.device) for name in (MEAN, PROJECTION))
    return F.normalize((features.double() - mean) @ projection, dim=1)
