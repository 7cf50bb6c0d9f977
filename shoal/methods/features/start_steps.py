"""The rounds that find where K-means starts: by local centres of clients, by moments alone, or by these under noise.

Clients cluster their own vectors, and the server draws starts from their centres, as in k-FED (Dennis et al. 2021).
Clients tell what the cheapest of these cost, and the best one of each beginning goes on (see `offsets`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.core.streams import Streams
from shoal.methods.clustering.declared_sums import (
    ClientLimits,
    check_starts,
    check_weighed,
    count_form,
    positive_form,
    total_form,
)
from shoal.methods.clustering.federated_k_means import ROWS, cheapest_starts, summed
from shoal.methods.clustering.k_means import kmeans
from shoal.methods.contract.base import Client, Server
from shoal.methods.contract.context import MethodError
from shoal.methods.contract.declared import MessageForm
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.features.centre_clustering import BEGINNINGS, CENTRES, GRAND_MEAN
from shoal.methods.features.clustering_step import Answers, ClusteringStep
from shoal.methods.features.offsets import SiteFit, beginnings, site_fit
from shoal.methods.features.private_sums import drawn_places, sure_moments
from shoal.methods.features.space import LANDMARKS, MEAN, SCALE, SPECTRAL, column_moments, shortened, unscaled
from shoal.methods.features.space_steps import COUNT_NOISE
from shoal.methods.features.spectral import set_count
from shoal.methods.features.summed_starts import gaussian_starts
from shoal.methods.features.vectors import ClientVectors

WEIGHED_STARTS = 8
"""Starts of each beginning of which clients tell the cost; fewer where their centres have too many values."""
DRAWN_STARTS = 100
"""Starts that are weighed where they are only draws with the moments of all vectors."""
RACE_SAMPLES = 4096
"""While several starts race, a client answers for a seeded draw of so many of its vectors, and finds its local centres
and its offset there."""
MAX_RACE_VALUES = 1 << 19
"""The centres of all starts have at most so many values: 4 MB, which every client gets once."""
LOCAL_STARTS = 3
LOCAL_CENTRES = 2
"""Local centres a cluster, from the best of so many starts of a client's K-means."""


class LocalStarts(ClusteringStep):
    """Clients send centres of their own vectors, from which the server draws starts."""

    def form(self, server: Server, limits: ClientLimits) -> MessageForm:
        """Return the form of one set of local centres."""
        unit = SPECTRAL in server.model or self.settings.directions
        shape = (1, range(LOCAL_CENTRES * self.clusters + 1), self.clustering.space_width(server))
        return local_centres_form(shape, limits, unit=unit)

    def answer(self, message: Message, client: Client, z: ClientVectors) -> Tensors:
        """Return a client's local centres."""
        count = LOCAL_CENTRES * self.clusters
        return local_centres(z, client, count, min_points=self.settings.min_points, starts=LOCAL_STARTS)

    def after(self, server: Server, answers: Answers) -> Server:
        """Return the state with the starts of each beginning."""
        sent = [(answer["centres"][0], answer["counts"][0]) for _, answer in answers]
        sent = [(centres[counts > 0], counts[counts > 0]) for centres, counts in sent]
        sent = [(centres, counts) for centres, counts in sent if len(counts)]
        if not sent:
            raise MethodError("no client has as many samples as method.min_points: set method.min_points lower")
        offsets = self.settings.sites == "estimate" and SPECTRAL not in server.model
        mean, begun = beginnings(sent, self.clusters)
        begun = begun if offsets else begun[:1]
        weights = torch.cat([counts for _, counts in sent])
        rng = self.server_rng("kmeans server")
        most = min(WEIGHED_STARTS, max(1, MAX_RACE_VALUES // (len(begun) * self.clusters * len(mean))))
        starts = [cheapest_starts(centres, weights, self.clusters, most, rng) for _, centres in begun]
        shares = [share for (share, _), of_share in zip(begun, starts, strict=True) for _ in of_share]
        tensors = {CENTRES: torch.cat(starts), BEGINNINGS: torch.tensor(shares, dtype=torch.float64), GRAND_MEAN: mean}
        return server.next({**server.model, **tensors})


class MomentStarts(ClusteringStep):
    """Clients send moments in the space, with which starts are drawn; no site has an offset then."""

    def form(self, server: Server, limits: ClientLimits) -> MessageForm:
        """Return the form of moments."""
        width = self.clustering.space_width(server)
        count = count_form((), limits.samples)
        return MessageForm({"samples": count, "total": total_form((width,)), "squares": positive_form((width,))})

    def answer(self, message: Message, client: Client, z: ClientVectors) -> Tensors:
        """Return the moments of a client's vectors, none of too few."""
        enough = len(z) >= self.clustering.min_points
        return summed(column_moments(part if enough else part[:0]) for part in z.blocks())

    def after(self, server: Server, answers: Answers) -> Server:
        """Return the state with starts drawn with the moments of all vectors."""
        moments = self.totals(answers)
        starts = min(DRAWN_STARTS, max(1, MAX_RACE_VALUES // (self.clusters * len(moments["total"]))))
        drawn = Streams(self.clustering.context.seed).torch("kmeans server")
        tensors = {
            CENTRES: gaussian_starts(moments, self.clusters, starts, drawn),
            BEGINNINGS: torch.zeros(starts, dtype=torch.float64),
            GRAND_MEAN: moments["total"] / moments["samples"],
        }
        return server.next({**server.model, **tensors})


class NoisyPlaces(MomentStarts):
    """Under noise moments refine the space, and landmarks, or one start, are drawn in it."""

    in_the_space = False

    def row_bounds(self, message: Message) -> Mapping[str, float]:
        """Return the bounds of moments of rows of a bounded length."""
        length = self.clustering.row_length(message.tensors)
        return {"samples": 1.0, "total": length, "squares": length**2}

    def after(self, server: Server, answers: Answers) -> Server:
        """Return the state with a refined space, and drawn landmarks or a start in it."""
        clustering = self.clustering
        scale = server.model[SCALE]
        noise = math.sqrt(3) * float(server.facts[COUNT_NOISE])
        moments = unscaled(sure_moments(self.totals(answers), scale, noise), scale)
        space, squares = shortened(moments, clustering.fitted_space(moments))
        mean = (moments["total"] / moments["samples"] - space[MEAN]) * space[SCALE]  # of counts it is not 0
        space[MEAN] += server.model[MEAN]
        landmarks = clustering.landmark_count if self.settings.landmarks else 0
        sets = set_count(landmarks) if landmarks else 1
        count = landmarks or self.clusters
        draw = partial(drawn_places, squares - mean.square(), count, Streams(clustering.context.seed))
        places = mean + torch.stack([draw(f"places {k}") for k in range(sets)])
        if self.settings.directions:
            places = F.normalize(places, dim=2)
        return server.next({**space, **({LANDMARKS: places} if landmarks else with_start(places))})


class StartCosts(ClusteringStep):
    """Clients tell what each start costs."""

    def form(self, server: Server, limits: ClientLimits) -> MessageForm:
        """Return the form of costs that the client's vectors can have."""
        centres = server.model[CENTRES]
        plain = server.model[BEGINNINGS].cpu() == 0
        rule = partial(check_weighed, centres=centres, plain=plain, limits=limits)
        return MessageForm({"inertia": positive_form((len(centres),), measured=False)}, rule=rule)

    def answer(self, message: Message, client: Client, z: ClientVectors) -> Tensors:
        """Return what each start costs a client (s,), 0 with too few samples."""
        drawn = drawn_vectors(client, z)
        fits = fits_of_starts(drawn, message.tensors)
        return {"inertia": costs_of_starts(fits, len(z) / len(drawn), enough=len(z) >= self.clustering.min_points)}

    def after(self, server: Server, answers: Answers) -> Server:
        """Return the state with the start of each beginning that costs least."""
        costs = self.totals(answers)["inertia"]
        shares = server.model[BEGINNINGS]
        kept = [int(costs.where(shares == share, math.inf).argmin()) for share in shares.unique()]
        return server.next(of_starts(server.model, kept))


def with_start(centres: Tensor) -> Tensors:
    """Return the server's tensors with one start (1, c, k), in which no site has an offset."""
    none = torch.zeros(centres.shape[2], dtype=torch.float64)
    return {CENTRES: centres, BEGINNINGS: none.new_zeros(1), GRAND_MEAN: none}


def of_starts(model: Tensors, kept: list[int]) -> Tensors:
    """Return the model with some of its starts."""
    return {**model, **{name: model[name][kept] for name in (CENTRES, BEGINNINGS)}}


def local_centres_form(shape: tuple[int | range, ...], limits: ClientLimits, *, unit: bool) -> MessageForm:
    """Return the form of sets of local centres (s, l, k), of vectors of unit length or not."""
    forms = {"centres": total_form(shape), "counts": count_form(shape[:2], limits.samples)}
    return MessageForm(forms, rule=partial(check_starts, unit=unit, limits=limits))


def local_centres(
    z: ClientVectors, client: Client, count: int, *, min_points: int, sets: int = 1, starts: int = 1
) -> Tensors:
    """Return what a client's own K-means finds, in several sets.

    Args:
        z: its vectors.
        client: that holds them.
        count: of centres in each set, at most; 0: the client sends none.
        min_points: smallest number of samples behind a centre.
        sets: K-means is run so often, each time from other starts.
        starts: of each K-means, of which the best counts.

    Returns:
        `centres` (sets, l, k), and the samples behind each, `counts`: 0 for those of too few.
    """
    order = torch.randperm(len(z), generator=client.streams.torch("local samples"))[:RACE_SAMPLES]
    drawn = z.at(order.to(z.device)).cpu().numpy()
    # Of more centres, most would have fewer samples behind them than `min_points`.
    count = min(count, len(drawn) // min_points)
    if count == 0:
        none = torch.zeros(sets, 0, drawn.shape[1], dtype=torch.float64)
        return {"centres": none, "counts": none[:, :, 0]}
    rng = client.streams.numpy("kmeans")
    sets_of_centres = [kmeans(drawn, count, rng, starts=starts).counted() for _ in range(sets)]
    centres, sizes = map(torch.stack, zip(*sets_of_centres, strict=True))
    few = sizes < min_points
    counts = sizes.masked_fill(few, 0) * (len(z) / len(drawn))
    return {"centres": centres.masked_fill(few[:, :, None], 0), "counts": counts}


def drawn_vectors(client: Client, z: ClientVectors) -> Tensor:
    """Return a draw of a client's vectors z that stands for all of them, always the same one, float64 (m, k)."""
    generator = replace(client.streams, round=0).torch("race samples")
    order = torch.randperm(len(z), generator=generator)[:RACE_SAMPLES].sort().values
    return torch.cat([z.at(part) for part in order.to(z.device).split(ROWS)])


def fits_of_starts(drawn: Tensor, tensors: Tensors) -> list[SiteFit]:
    """Return how well a draw of a client's vectors (m, k) fits each start, and what offset it has beside it."""
    centres, shares, mean = (tensors[name].to(drawn.device) for name in (CENTRES, BEGINNINGS, GRAND_MEAN))
    return [site_fit(drawn, start, share, mean) for start, share in zip(centres, shares.tolist(), strict=True)]


def costs_of_starts(fits: Sequence[SiteFit], weight: float, *, enough: bool) -> Tensor:
    """Return what each start costs a client (s,).

    Args:
        fits: of a draw of its vectors.
        weight: the number of vectors for which each of the draw stands.
        enough: whether it has `min_points` of them; the distances of fewer from several centres would tell where they
            are, and it says 0.
    """
    costs = torch.stack([fit.cost for fit in fits]) * weight
    return costs if enough else torch.zeros_like(costs)
