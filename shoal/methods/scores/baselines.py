"""What clusters are worth beside nothing: null baselines on the same samples, and a score that needs no labels.

A clustering is compared with K-means on the raw samples, on an untrained encoder's features and on those of a frozen
pretrained encoder, and with its own clusters in random order. Where there are labels, the comparison is in ACC. Without
labels, the score is how often a sample's nearest neighbours are in its cluster, beyond chance, in a space that no run
has trained: for images pixels and the frozen encoder's features side by side. Features that a method learns are
compared by a linear probe.

Symbols in shapes: n samples, c clusters, d features.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from shoal.core.streams import Streams
from shoal.methods.clustering.agreement import table_ari
from shoal.methods.clustering.k_means import kmeans
from shoal.methods.scores.client_scores import ClientScores, MeanByClient, means_by_client
from shoal.methods.scores.clustering import accuracy, chance_ari, table_accuracy
from shoal.methods.scores.neighbours import nearest_samples, neighbour_agreement
from shoal.methods.scores.no_groups import Groups, gain_over_no_groups, mean_over_sites

MAX_SAMPLES = 2_000
"""Samples of the comparison, a seeded draw: encoding them takes seconds."""
MAX_SIDE = 32
"""Pixels a side to which larger images are averaged for K-means on pixels."""
CENTRED = ", less the mean of each site"
"""End of the name of a space in which site means are subtracted."""
RANDOM_ORDERS = 20
"""Random orders over which the ACC of chance is averaged."""
ARI_ORDERS = 200
"""Random orders of which the largest ARI is that of chance."""
STARTS = 5
"""Starts of K-means on each space."""
OF_THE_RUN = ("neighbours", "acc", "chance_acc", "largest_class", "probe", "features_acc", "ari", "chance_ari")
"""The numbers of a comparison that are of the run alone."""


@dataclass(frozen=True)
class Comparison:
    """A clustering beside null baselines, all on the same samples.

    Attributes:
        samples: how many were drawn.
        space: in which neighbours were looked for: `joint`, `pixels`, `columns` or `standardised`, with `CENTRED` at
            its end where the run subtracts site means.
        neighbours: neighbour agreement of the run's clusters beyond chance: 1 at best, about 0 by chance.
        baseline_neighbours: the same of each baseline, by the name of its space.
        acc: of the run's clusters; None without labels.
        chance_acc: of its clusters in random order.
        largest_class: share of the most frequent class: the ACC of a single cluster.
        baseline_acc: of each baseline, by the name of its space.
        probe: of the run's features, where features are what it learns and there are labels.
        baseline_probes: the same of each baseline.
        features_acc: of K-means on the features, where the run's clusters are those of a trained head.
        ari: of the run's clusters; None without labels, as the next.
        chance_ari: the largest of its clusters in `ARI_ORDERS` random orders.
        twins: pairs of clusters that may be one kind at two groups of clients (`shoal.methods.scores.twins`).
        by_client: means over clients of scores of the run's clusters and features, by name; they decide nothing.
        groups: whether the samples have groups at all, in the space of the neighbours; None with labels, which tell
            more, and where there are no baselines.
    """

    samples: int
    space: str
    neighbours: float
    baseline_neighbours: Mapping[str, float]
    acc: float | None = None
    chance_acc: float | None = None
    largest_class: float | None = None
    baseline_acc: Mapping[str, float] = field(default_factory=dict)
    probe: float | None = None
    baseline_probes: Mapping[str, float] = field(default_factory=dict)
    features_acc: float | None = None
    ari: float | None = None
    chance_ari: float | None = None
    by_client: Mapping[str, MeanByClient] = field(default_factory=dict)
    twins: tuple[tuple[int, ...], ...] = ()
    groups: Groups | None = None

    @property
    def numbers(self) -> dict[str, float]:
        """Every number by a name of its own, as it is listed with a run's quality."""
        numbers: dict[str, float | None] = {
            "neighbour_agreement": self.neighbours,
            "chance_acc": self.chance_acc,
            "features_acc": self.features_acc,
            "probe_of_run": self.probe,
            "group_gain": self.groups.gain if self.groups else None,
        }
        for kind, values in (
            ("neighbour_agreement", self.baseline_neighbours),
            ("acc", self.baseline_acc),
            ("probe", self.baseline_probes),
        ):
            numbers |= {f"{kind}_of_{space}": value for space, value in values.items()}
        numbers |= {name: mean.value for name, mean in self.by_client.items()}
        return {name: value for name, value in numbers.items() if value is not None}


def compare_clusters(
    cluster: np.ndarray,
    clusters: int,
    spaces: Mapping[str, np.ndarray],
    judge: tuple[str, np.ndarray],
    labels: np.ndarray | None,
    said: Sequence[ClientScores],
    streams: Streams,
    widths: Sequence[int] = (),
) -> Comparison:
    """Return a clustering beside K-means in each of some spaces.

    Args:
        cluster: of the run, int (n,), n at least 2.
        clusters: c; with more clusters than samples there are no baselines.
        spaces: features (n, d) of the same samples, by name.
        judge: name and features (n, k) of the space in which neighbours are looked for.
        labels: int (m,), of the first m samples; None without labels.
        said: by each client, and by those who hold samples without a client, of the run's clusters of their samples.
        streams: draw the starts, the same for every run that compares with the same space, and random orders.
        widths: numbers of the judging space's columns that code one measurement each; none: each column is one.
    """
    finite = {name: x for name, x in spaces.items() if np.isfinite(x).all() and len(x) >= clusters}
    baselines = {
        name: kmeans(x, clusters, streams.numpy(f"null baseline {name}"), starts=STARTS).cluster
        for name, x in finite.items()
    }
    space, features = judge
    near = nearest_samples(features)
    agreement = {name: neighbour_agreement(clustering, near) for name, clustering in baselines.items()}
    of_run = neighbour_agreement(cluster, near)
    comparison = Comparison(len(cluster), space, of_run, agreement, by_client=means_by_client(said))
    if labels is None or not len(labels):
        if len(features) < clusters or not np.isfinite(features).all():
            return comparison
        groups = gain_over_no_groups(features, clusters, streams.numpy("samples without groups"), widths=widths)
        return replace(comparison, groups=groups)
    table: np.ndarray = np.sum([client.table for client in said], axis=0)
    labelled = table[:, :-1]
    known = cluster[: len(labels)]
    rng = streams.numpy("random clusters")
    orders = [accuracy(labels, rng.permutation(known)) for _ in range(RANDOM_ORDERS)]
    return replace(
        comparison,
        acc=table_accuracy(labelled),
        chance_acc=float(np.mean(orders)),
        ari=table_ari(labelled),
        chance_ari=chance_ari(labelled, ARI_ORDERS, streams.numpy("ARI of random clusters")),
        largest_class=float(labelled.sum(0).max() / labelled.sum()),
        baseline_acc={name: accuracy(labels, clustering[: len(labels)]) for name, clustering in baselines.items()},
    )


def mean_comparison(parts: Sequence[Comparison]) -> Comparison:
    """Return the mean of comparisons on the samples of several sites, by their numbers of samples.

    A number that some of them lack is the mean of the others.

    Args:
        parts: at least one.
    """

    def mean(values: Iterable[float | None]) -> float | None:
        having = [(value, part.samples) for value, part in zip(values, parts, strict=True) if value is not None]
        if not having:
            return None
        known, samples = zip(*having, strict=True)
        return float(np.average(known, weights=samples))

    numbers: dict[str, Any] = {name: mean(getattr(part, name) for part in parts) for name in OF_THE_RUN}
    for name in ("baseline_neighbours", "baseline_acc", "baseline_probes"):
        by_space = [getattr(part, name) for part in parts]
        numbers[name] = {space: mean(of.get(space) for of in by_space) for space in sorted(set().union(*by_space))}
    groups = [part.groups for part in parts if part.groups is not None]
    by_client = {}
    for name in sorted({name for part in parts for name in part.by_client}):
        scores = [part.by_client[name] for part in parts if name in part.by_client]
        clients = [score.clients for score in scores]
        value = np.average([score.value for score in scores], weights=clients)
        by_client[name] = MeanByClient(float(value), sum(clients))
    return Comparison(
        samples=sum(part.samples for part in parts),
        space=parts[0].space,
        by_client=by_client,
        groups=mean_over_sites(groups) if groups else None,
        **numbers,
    )


def features_accuracy(x: np.ndarray, clusters: int, labels: np.ndarray, streams: Streams) -> float | None:
    """Return the ACC of K-means on features; None where they are not finite or fewer than the clusters.

    Args:
        x: (n, d).
        clusters: of K-means.
        labels: int (n,).
        streams: draw the starts.
    """
    if len(x) < clusters or not np.isfinite(x).all():
        return None
    return accuracy(labels, kmeans(x, clusters, streams.numpy("K-means on features"), starts=STARTS).cluster)


def side_by_side(pixels: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Return pixels (n, p) and features (n, d) in one space (n, p + d) in which both weigh the same.

    Features are scaled to unit length; then each part is centred, and has a total variance of 1.
    """
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    parts = []
    for part in (pixels, features / np.where(lengths > 0, lengths, 1)):
        centred = part - part.mean(0, dtype=np.float64)
        spread = np.sqrt(np.square(centred).sum() / len(centred))
        parts.append(centred / (spread if spread > 0 else 1))
    return np.hstack(parts)
