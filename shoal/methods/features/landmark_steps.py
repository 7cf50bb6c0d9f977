"""The rounds that find landmarks, and the space that follows from how samples lie between them (see `spectral`)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from shoal.methods.clustering.declared_sums import ClientLimits, check_affinities, count_form
from shoal.methods.clustering.k_means import kmeans
from shoal.methods.contract.base import Client, Server
from shoal.methods.contract.context import AnswersRefused, MethodError
from shoal.methods.contract.declared import MessageForm
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.features.clustering_step import Answers, ClusteringStep
from shoal.methods.features.landmark_offsets import offsets_if_sites_differ
from shoal.methods.features.private_sums import SURE
from shoal.methods.features.space import LANDMARKS, OFFSET_MEAN, SPECTRAL
from shoal.methods.features.space_steps import COUNT_NOISE
from shoal.methods.features.spectral import (
    PLACING_SAMPLES,
    SAMPLES_PER_CENTRE,
    affinity_sums,
    in_spectral_space,
    landmarks_among,
    set_count,
    spectral_projection,
)
from shoal.methods.features.start_steps import local_centres, local_centres_form, with_start
from shoal.methods.features.vectors import ClientVectors

NEAR = 8
"""Landmarks are far apart where neither is among so many that are nearest to the other."""
MAX_FAR_TIES = 0.45
"""Share of a client's ties that may be between landmarks far apart. On 27 sets of images and 6 tables those of honest
clients had at most .32, on columns of noise .38, and lies that tied two groups .49 or more."""
MAX_FAR_RATIO = 1.5
"""So many times the median client's share is never too much: in noise of many columns all landmarks are far apart."""
MIN_COMPARED_ANSWERS = 3


class LandmarkPlaces(ClusteringStep):
    """Clients send local centres, among which the server places sets of landmarks, less offsets where sites differ."""

    def form(self, server: Server, limits: ClientLimits) -> MessageForm:
        """Return the form of several sets of local centres."""
        most = self.clustering.landmark_count
        sets = set_count(most)
        width = self.clustering.space_width(server)
        return local_centres_form((sets, range(most + 1), width), limits, unit=self.settings.directions)

    def answer(self, message: Message, client: Client, z: ClientVectors) -> Tensors:
        """Return local centres, one among four samples at most."""
        most = self.clustering.landmark_count
        count = min(most, len(z) // SAMPLES_PER_CENTRE) if len(z) >= PLACING_SAMPLES else 0
        return local_centres(z, client, count, min_points=self.settings.min_points, sets=set_count(most))

    def after(self, server: Server, answers: Answers) -> Server:
        """Return the state with sets of landmarks, and with the mean of all vectors where sites differ."""
        local, counts = zip(*[(answer["centres"], answer["counts"]) for _, answer in answers], strict=True)
        model = server.model
        sent = [(x[n > 0], n[n > 0] / len(n)) for x, n in zip(local, counts, strict=True)]
        offsets = None
        if self.settings.sites == "estimate":
            offsets = offsets_if_sites_differ(sent, self.clusters, self.server_rng("offsets of sites"))
        if offsets is not None:
            model = {**model, OFFSET_MEAN: offsets.mean}
            local = tuple(centres - offset for centres, offset in zip(local, offsets.offsets, strict=True))
        return server.next({**model, LANDMARKS: self.landmarks(torch.cat(local, 1), torch.cat(counts, 1))})

    def landmarks(self, local: Tensor, counts: Tensor) -> Tensor:
        """Return sets of landmarks (s, m, k) among the clients' local centres.

        Args:
            local: (s, l, k).
            counts: of samples behind them, (s, l).

        Raises:
            MethodError: fewer local centres than clusters.
        """
        fewest = int((counts > 0).sum(1).min())
        if fewest < self.clusters:
            raise MethodError(
                f"the clients sent {fewest} local centres, too few landmarks for {self.clusters} clusters: set "
                "method.landmarks to 0, or model.clusters lower"
            )
        count = min(fewest, self.clustering.landmark_count)
        rng = self.server_rng("landmarks")
        pairs = zip(local, counts, strict=True)
        return torch.stack([landmarks_among(centres[sent > 0], sent[sent > 0], count, rng) for centres, sent in pairs])


class LandmarkTies(ClusteringStep):
    """Clients send sums of products of affinities to landmarks, whose spectrum is the space."""

    def form(self, server: Server, limits: ClientLimits) -> MessageForm:
        """Return the form of sums of products (s, m, m)."""
        sets, landmarks, _ = server.model[LANDMARKS].shape
        products = count_form((sets, landmarks, landmarks), limits.samples, measured=True)
        return MessageForm({"products": products}, rule=partial(check_affinities, samples=limits.samples))

    def row_bounds(self, message: Message) -> Mapping[str, float]:
        """Return the bound of products: a row's have length 1 in each set."""
        return {"products": math.sqrt(len(message.tensors[LANDMARKS]))}

    def answer(self, message: Message, client: Client, z: ClientVectors) -> Tensors:
        """Return the sums of products of a client."""
        landmarks = message.tensors[LANDMARKS].to(self.clustering.context.device)
        return {"products": affinity_sums(z.blocks(), landmarks, min_points=self.clustering.min_points)}

    def after(self, server: Server, answers: Answers) -> Server:
        """Return the state with the spaces of the sets of landmarks.

        Raises:
            AnswersRefused: clients tie landmarks that lie far apart, as rows near both cannot.
        """
        far = far_apart(server.model[LANDMARKS])
        shares: dict[int, float] = {}

        def compared() -> Answers:
            for client, tensors in answers:
                shares[client] = far_share(tensors["products"], far)
                yield client, tensors

        products = self.totals(compared())["products"]
        if reasons := too_far_ties(shares):
            raise AnswersRefused(reasons)
        return server.next(self.with_spaces(server.model, products))

    def with_spaces(self, model: Tensors, products: Tensor) -> Tensors:
        """Return the model with the spaces that follow from products (s, m, m)."""
        return {**model, SPECTRAL: torch.stack([spectral_projection(of_set, self.clusters) for of_set in products])}


class NoisyTies(LandmarkTies):
    """Under noise products that it explains count for nothing, and K-means starts from centres of the landmarks."""

    def after(self, server: Server, answers: Answers) -> Server:
        """Return the state with the spaces of the sets of landmarks, and a start among these."""
        products = self.totals(answers)["products"]
        sure = SURE * float(server.facts[COUNT_NOISE]) * math.sqrt(len(products))
        products = (products + products.mT) / 2
        model = self.with_spaces(server.model, products.where(products > sure, 0))
        places = in_spectral_space(model[LANDMARKS].flatten(0, 1), model[LANDMARKS], model[SPECTRAL])
        centres = kmeans(places.numpy(), self.clusters, self.server_rng("kmeans server")).centres
        return server.next({**model, **with_start(torch.from_numpy(centres).double()[None])})


def far_apart(landmarks: Tensor) -> Tensor:
    """Return which pairs of landmarks (s, m, k) are far apart, bool (s, m, m)."""
    rank = torch.cdist(landmarks, landmarks).argsort(2).argsort(2)
    return torch.minimum(rank, rank.mT) > NEAR


def far_share(products: Tensor, far: Tensor) -> float:
    """Return the share of a client's ties (s, m, m) that are between landmarks far apart; 0 of few samples."""
    if float(products.sum()) < PLACING_SAMPLES * len(products):
        return 0.0
    return float(products[far].sum() / products.sum())


def too_far_ties(shares: Mapping[int, float]) -> dict[int, str]:
    """Return the clients whose shares of far ties are too large, and why each is refused.

    Args:
        shares: of the clients of a round.
    """
    if len(shares) < MIN_COMPARED_ANSWERS:
        return {}
    median = statistics.median(shares.values())
    most = max(MAX_FAR_TIES, MAX_FAR_RATIO * median)
    return {
        client: f"{share:.0%} of its ties are between landmarks that lie far apart, and {median:.0%} of the median "
        f"client's: expected at most {most:.0%}"
        for client, share in shares.items()
        if share > most
    }
