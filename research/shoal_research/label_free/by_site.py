"""What the verdict's bounds say of agreements measured at each site alone: on the tuning sets, dealt out in three ways.

    python -m shoal_research.label_free.by_site        # five minutes on a core; needs the packaged encoder

Each set is clustered in its spaces, and once by its classes, by classes of which half are shuffled, and at random. A
site with one kind of samples agrees with itself, so that the mean over such sites must not say good.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from shoal.core.streams import Streams
from shoal.methods.clustering.k_means import kmeans
from shoal.methods.scores.client_scores import BY_CLIENT, client_scores, means_by_client
from shoal.methods.scores.clustering import accuracy, label_table
from shoal.methods.scores.neighbours import nearest_samples, neighbour_agreement
from shoal.methods.scores.verdict import CHANCE_GAP, DOUBTFUL_GAP, MARGIN
from shoal_research.label_free.calibrate import CLIENTS, FILE, STARTS, image_spaces, shared_out
from shoal_research.label_free.tables import CHANCE, NULL
from shoal_research.label_free.tuning_sets import IMAGES, TABLES

RESULTS = FILE.with_name("label_free_by_site.json")
MAX_SAMPLES = 400
"""Samples of a set, a seeded draw."""
UNEVEN = 5
"""Ratio of columns' deviations from which they are standardised."""
LEAST_GOOD = (0.5, 0.6, 0.7, 0.8, 0.85)
"""Bounds that are tried, below which an agreement is doubtful."""
POOLED = "pooled"


def clusterings(spaces: Mapping[str, np.ndarray], y: np.ndarray) -> dict[str, np.ndarray]:
    """Return clusters of the samples of classes y (n,), by name: K-means in each space, and planted ones."""
    clusters = len(np.unique(y))
    rng = np.random.default_rng(1)
    half = np.where(rng.random(len(y)) < 0.5, rng.permutation(y), y)
    planted = {"classes": y, "half": half, "random": rng.permutation(y)}
    k_means = {name: kmeans(x, clusters, np.random.default_rng(0), starts=STARTS).cluster for name, x in spaces.items()}
    return k_means | planted


def agreement_by_site(cluster: np.ndarray, site: np.ndarray, space: np.ndarray) -> float | None:
    """Return the mean agreement of neighbours over sites; None where all are too small."""
    said = []
    for number in np.unique(site):
        here = site == number
        table = label_table(cluster[here], None, int(cluster.max()) + 1, 0)
        said.append(client_scores(table, cluster[here], None, space[here], space[here], Streams(0)))
    mean = means_by_client(said).get(f"neighbour_agreement{BY_CLIENT}")
    return None if mean is None else mean.value


def scored(spaces: Mapping[str, np.ndarray], judge: np.ndarray, nulls: tuple[str, ...], y: np.ndarray) -> list[Any]:
    """Return a row a clustering: by dealing agreement and its gap to the best null baseline; whether it is bad."""
    near = nearest_samples(judge)
    rng = np.random.default_rng(2)
    dealt = {"at random": rng.integers(0, CLIENTS, len(y)), "uneven": shared_out(y, rng), "one kind a site": y}
    named = clusterings(spaces, y)
    best = max(accuracy(y, named[name]) for name in nulls)
    agreements: dict[str, dict[str, float | None]] = {}
    for name, cluster in named.items():
        by_site = {dealing: agreement_by_site(cluster, site, judge) for dealing, site in dealt.items()}
        agreements[name] = {POOLED: neighbour_agreement(cluster, near), **by_site}
    rows = []
    for name, cluster in named.items():
        acc = accuracy(y, cluster)
        chance = acc < CHANCE * accuracy(y, rng.permutation(cluster))
        for dealing, value in agreements[name].items():
            of_nulls = [agreements[null][dealing] for null in nulls]
            if value is not None:
                gap = value - max(other for other in of_nulls if other is not None)
                rows.append((dealing, value, gap, chance, acc < best - MARGIN))
    return rows


def table_spaces(make: Callable[[], Any]) -> tuple[dict[str, np.ndarray], np.ndarray, tuple[str, ...], np.ndarray]:
    """Return the spaces of a table, the one in which neighbours are found, the null baselines, and the classes."""
    x, y = drawn(make)
    deviation = x.std(0)
    varies = deviation > 0
    even = (x[:, varies] - x[:, varies].mean(0)) / deviation[varies]
    uneven = deviation[varies].max() >= UNEVEN * np.median(deviation[varies])
    return {"raw": x, "standardised": even}, even if uneven else x, ("raw", "standardised"), y


def picture_spaces(make: Callable[[], Any]) -> tuple[dict[str, np.ndarray], np.ndarray, tuple[str, ...], np.ndarray]:
    """Return what `table_spaces` does, of images."""
    x, y = drawn(make)
    spaces = image_spaces(x)
    return spaces, spaces["side by side"], NULL, y


def drawn(make: Callable[[], Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return samples of a set and their classes, 0 to the number of classes less 1."""
    x, y = (np.asarray(part) for part in make())
    order = np.random.default_rng(0).permutation(len(y))[:MAX_SAMPLES]
    return x[order], np.unique(y[order], return_inverse=True)[1]


def words(rows: list[Any], least_good: float) -> dict[str, dict[str, int]]:
    """Return by word how many clusterings have it, how many of these are chance, and how many behind a baseline."""
    counted: dict[str, Counter[str]] = {word: Counter() for word in ("chance", "doubtful", "good")}
    for _, value, gap, chance, behind in rows:
        word = "good"
        if gap < -CHANCE_GAP:
            word = "chance"
        elif gap < -DOUBTFUL_GAP or value < least_good:
            word = "doubtful"
        counted[word].update(all=1, chance=int(chance), behind=int(behind))
    return {word: dict(count) for word, count in counted.items()}


def measure() -> None:
    """Measure all sets and write the words that each dealing comes to."""
    rows = []
    with threadpool_limits(1):
        for make in TABLES.values():
            rows += scored(*table_spaces(make))
        for make in IMAGES.values():
            rows += scored(*picture_spaces(make))
    found = {
        dealing: {str(bound): words([row for row in rows if row[0] == dealing], bound) for bound in LEAST_GOOD}
        for dealing in dict.fromkeys(row[0] for row in rows)
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    measure()
