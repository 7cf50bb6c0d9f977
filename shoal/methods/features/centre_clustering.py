"""A clustering of vectors by centres, in a space that its server holds: how samples are assigned, and how it is judged.

How the space and the centres are found is the business of `feature_clustering`.

Symbols in shapes: n samples, d features, k dimensions of the space, c clusters, s starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.core.setting import setting
from shoal.methods.clustering.federated_k_means import ROWS, nearest
from shoal.methods.contract.base import Clients, Evaluation, Method, Server
from shoal.methods.contract.context import Context, MethodError, ModelSettings
from shoal.methods.contract.message import Tensors
from shoal.methods.contract.prediction import Assignment, Prediction, ShardPredictions
from shoal.methods.features.landmark_offsets import half_offset
from shoal.methods.features.offsets import site_fit
from shoal.methods.features.space import (
    LANDMARKS,
    OFFSET_MEAN,
    PROJECTION,
    SPECTRAL,
    SpaceSettings,
    among_landmarks,
    fitted_space,
    in_space,
    projected,
)
from shoal.methods.features.spectral import landmark_count
from shoal.methods.features.vectors import SITE_OFFSET, SpaceVectors, VectorSource
from shoal.methods.scores.assignment import Nearest, nearest_centres
from shoal.methods.scores.evaluation import JudgedSamples, evaluate_predictor

CENTRES = "centres"
"""Among the server's tensors: (s, c, k) float64, the centres of the starts that are still in the race."""
BEGINNINGS = "beginnings"
"""Among the server's tensors: (s,) float64, the beginning of each start, by its share (see `offsets`)."""
GRAND_MEAN = "federation.mean"
"""Among the server's tensors: (k,) float64, the mean of all vectors in the space."""
PLACED = {CENTRES, LANDMARKS}
"""What the server has placed once the space is known."""
MAX_BETWEEN_ROUNDS = 50_000
"""Training samples whose clusters are judged after a round that is not the last."""


@dataclass(frozen=True)
class FeatureSettings(SpaceSettings):
    """Hyper-parameters of a federated clustering of vectors."""

    min_points: int = setting(
        2,
        "smallest number of a client's samples behind a centre, a sum or a moment that it sends; no protection: "
        "differences of larger groups tell about single samples too (shoal explain RUN --server-sees)",
        ge=1,
    )


class CentreClustering(Method):
    """A clustering of vectors whose server holds the space and the centres."""

    Settings = FeatureSettings
    model_defaults = ModelSettings(encoder="efficientnet-lite0")
    kinds = ("vector", "image", "series")
    trains = False
    judges_features = True
    of_the_server = ("site_offsets",)
    encoder = "frozen"
    settings: FeatureSettings

    def __init__(self, settings: FeatureSettings, context: Context) -> None:
        space = settings.settled(context.spec)
        drawn = space.components if context.clip is not None else 0
        super().__init__(replace(space, components=0) if drawn else space, context)
        self.source = VectorSource(
            context,
            self.network_cache,
            directions=space.directions,
            centre_sites=space.centre_sites,
            representation=space.representation,
            drawn_columns=drawn,
        )

    @property
    def private(self) -> bool:
        """Whether noise covers all sums, and rows are cut to a length."""
        return self.context.clip is not None

    @property
    def min_points(self) -> int:
        """Samples behind each sum at least; 0 under noise, which covers less than what one row can let appear."""
        return 0 if self.private else self.settings.min_points

    @property
    def landmark_count(self) -> int:
        """Landmarks that are sought in each set."""
        return landmark_count(self.settings.landmarks, self.context.clusters)

    def fitted_space(self, moments: Tensors) -> Tensors:
        """Return the tensors of the space that follows from the sums of all clients' moments; components follow."""
        return fitted_space(moments, self.settings, self.source.layer_widths, self.context.spec.column_widths)

    def row_length(self, tensors: Tensors) -> float:
        """Return the greatest length of a row where noise covers sums, by the server's tensors."""
        assert self.context.clip is not None
        unit = self.settings.directions or SPECTRAL in tensors
        if unit and PLACED & tensors.keys():
            return min(self.context.clip, 1.0)
        return self.context.clip

    def space_width(self, server: Server) -> int:
        """Dimensions of the space, k."""
        if SPECTRAL in server.model:
            sets, _, clusters = server.model[SPECTRAL].shape
            return sets * clusters
        if PROJECTION in server.model:
            return server.model[PROJECTION].shape[1]
        return self.source.width

    def centres(self, server: Server) -> Tensor:
        """Return the centres (c, k); while beginnings race, those of the one without offsets.

        Raises:
            MethodError: K-means has not started.
        """
        if CENTRES not in server.model:
            raise MethodError(f"{self.name} has no centres before its first iteration of K-means")
        return server.model[CENTRES][0].to(self.context.device)

    def assign(self, server: Server, z: Tensor) -> Prediction:
        """Return the nearest centre of each vector z (n, k) in the space, as a hard assignment."""
        centres = self.centres(server)
        cluster = nearest(z, centres[None])[0][0]
        return Prediction(cluster, F.one_hot(cluster, len(centres)).float(), z.float())

    def predictor(self, server: Server) -> Callable[[Tensor], Prediction]:
        """Return the assignment of samples that no client holds: with `centre_sites` they are of no known site."""
        self.centres(server)
        return lambda x: self.assign(server, self.vectors_of(server, x))

    def site_predictor(self, server: Server, x: Tensor, memory: Mapping[str, Tensor]) -> Callable[[Tensor], Prediction]:
        """Return the assignment of samples less the offset of their site."""
        offset = memory.get(SITE_OFFSET)
        if offset is None and OFFSET_MEAN in server.model:
            z = self.before_landmarks(projected(self.source.of(x), server.model))
            offset = half_offset(z.mean(0), server.model[OFFSET_MEAN].to(z.device), len(z), self.context.clusters)
        elif offset is None:
            mean = server.model[GRAND_MEAN].to(self.context.device)
            share = float(server.model[BEGINNINGS][0])
            offset = site_fit(self.vectors_of(server, x), self.centres(server), share, mean).offset
        known = offset.to(self.context.device)
        return lambda x: self.assign(server, self.vectors_of(server, x, known))

    def before_landmarks(self, z: Tensor) -> Tensor:
        """Return projected vectors z (n, k) as they are where landmarks are placed, without an offset."""
        return among_landmarks(z, {}, directions=self.settings.directions)

    def vectors_of(self, server: Server, x: Tensor, offset: Tensor | None = None) -> Tensor:
        """Return samples x (as of `Samples.x`) as vectors in the space, less an offset, float64 (n, k)."""
        return in_space(self.source.of(x), server.model, directions=self.settings.directions, offset=offset)

    def judged_vectors(self, server: Server, clients: Clients, evaluation: Evaluation) -> SpaceVectors:
        """Return the vectors of all samples in the space, training then test."""
        offsets = self.uses_offsets(server)
        return self.source.judged(server.model, self.space_width(server), clients, evaluation, offsets=offsets)

    def uses_offsets(self, server: Server) -> bool:
        """Return whether vectors lose the offsets of their sites."""
        model = server.model
        return OFFSET_MEAN in model or (has_offsets(model) and len(model[CENTRES]) == 1)

    def predictions(self, server: Server, clients: Clients, evaluation: Evaluation) -> Iterator[ShardPredictions]:
        """Yield the clusters of all samples, and of those that judge features also their vectors."""
        judged = JudgedSamples.at_end(evaluation)
        for start, z in self.judged_vectors(server, clients, evaluation).batches(evaluation.batch):
            predicted = self.assign(server, z)
            kept = judged.rows_of(predicted.embedding, start)
            yield ShardPredictions(predicted.cluster.cpu(), self.context.clusters, kept)

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Return the scores of the clusters, and in the last evaluation those of the vectors as features."""
        if CENTRES not in server.model:
            return {}
        if not evaluation.final:
            evaluation = self.some_of(evaluation)
        shards = self.predictions(server, clients, evaluation)
        metrics = evaluate_predictor(self.predictor(server), evaluation, shards=shards)
        return {**metrics, "site_offsets": 1.0} if self.uses_offsets(server) else metrics

    def some_of(self, evaluation: Evaluation) -> Evaluation:
        """Return an evaluation of at most `MAX_BETWEEN_ROUNDS` training samples, a seeded draw.

        Where vectors are kept by client, all of them are taken.
        """
        kept = self.source.encoder is not None
        count = len(evaluation.train)
        if kept or count <= MAX_BETWEEN_ROUNDS:
            return evaluation
        generator = evaluation.streams.torch("judged between rounds")
        chosen = torch.randperm(count, generator=generator)[:MAX_BETWEEN_ROUNDS].sort().values
        return replace(evaluation, train=evaluation.train.take(chosen.to(evaluation.train.index.device)))

    def assignment(self, server: Server, clients: Clients, evaluation: Evaluation) -> Assignment:
        """Return the cluster of every sample, and by what margin its centre is the nearest."""
        centres = self.centres(server).cpu()
        vectors = self.judged_vectors(server, clients, evaluation)
        count = len(vectors)
        near = Nearest(torch.empty(count, dtype=torch.int64), torch.empty(count), torch.empty(count))
        for first, z in vectors.batches(ROWS):
            predicted = self.assign(server, z)
            # Copied to its place: small tensors between large ones that are freed would hold the memory of these.
            here = nearest_centres(predicted.embedding.cpu(), centres, predicted.cluster.cpu())
            for whole, part in zip(near, here, strict=True):
                whole[first : first + len(part)] = part
        corrected = self.settings.centre_sites or self.uses_offsets(server)
        return Assignment(
            near.cluster, near.confidence, len(centres), vectors, centres.float(), near.distance, corrected
        )


def has_offsets(tensors: Tensors) -> bool:
    """Return whether vectors of clients lose the offset of their site, by the tensors of the server or its message."""
    return BEGINNINGS in tensors and bool((tensors[BEGINNINGS] > 0).any())
