"""The verdict without labels, and whether K-means finds more than among random samples: on tuning sets and on noise.

    python -m shoal_research.label_free.groups        # half an hour on a core; needs the packaged encoder

The bounds of the verdict (`NO_GROUPS_GAIN`, `GROUPS_GAIN`) must lie above every noise, whatever it looks like.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from shoal.core.streams import Streams
from shoal.methods.clustering.k_means import kmeans
from shoal.methods.scores.baselines import compare_clusters
from shoal.methods.scores.verdict import verdict_of
from shoal_research.label_free.by_site import picture_spaces, table_spaces
from shoal_research.label_free.calibrate import FILE, STARTS
from shoal_research.label_free.tuning_sets import IMAGES, TABLES

RESULTS = FILE.with_name("label_free_groups.json")
SEEDS = 20
Draw = Callable[[np.random.Generator], np.ndarray]


def uniform(columns: int) -> Draw:
    """Return what draws 600 rows of uniform columns."""
    return lambda rng: rng.random((600, columns))


NOISE: Mapping[str, tuple[Draw, int]] = {
    "2 uniform columns": (uniform(2), 4),
    "3 uniform columns": (uniform(3), 4),
    "5 uniform columns": (uniform(5), 4),
    "48 uniform columns": (uniform(48), 8),
    "5 columns yes or no": (lambda rng: (rng.random((600, 5)) > 0.5).astype(float), 4),
    "12 columns yes or no, uneven": (lambda rng: (rng.random((600, 12)) > rng.random(12)).astype(float), 4),
    "6 columns of 1 to 5": (lambda rng: rng.integers(1, 6, (600, 6)).astype(float), 4),
    "one Gaussian": (lambda rng: rng.normal(size=(600, 6)) @ rng.normal(size=(6, 6)), 4),
    "heavy tails": (lambda rng: rng.standard_t(2, size=(600, 6)), 4),
    "9:1": (lambda rng: with_a_group(rng, 0.1), 2),
    "19:1": (lambda rng: with_a_group(rng, 0.05), 2),
    "correlated Gaussian, 20 columns": (lambda rng: rng.normal(size=(600, 3)) @ rng.normal(size=(3, 20)), 4),
    "blobs": (lambda rng: rng.normal(size=(600, 5)) + 8 * rng.normal(size=(4, 5))[rng.integers(0, 4, 600)], 4),
}
"""Rows without groups, or with one that is too small to tell, and the number of clusters that is looked for."""
NOISY_IMAGES: Mapping[str, Draw] = {
    "uniform pixels": lambda rng: rng.integers(0, 256, (400, 32, 32, 3)).astype(np.uint8),
    "grey pixels": lambda rng: np.clip(rng.normal(128, 40, (400, 28, 28)), 0, 255).astype(np.uint8),
    "blocks": lambda rng: np.kron(rng.integers(0, 256, (400, 4, 4, 3)), np.ones((1, 8, 8, 1))).astype(np.uint8),
}
"""Images without groups."""
IMAGE_CLUSTERS = 6
"""Clusters that are looked for among them."""


def with_a_group(rng: np.random.Generator, share: float) -> np.ndarray:
    """Return 600 rows of three Gaussian columns, of which a share is far away in the first."""
    x = rng.normal(size=(600, 3))
    x[: round(600 * share), 0] += 12
    return x


def standardised(x: np.ndarray) -> np.ndarray:
    """Return columns of mean 0 and deviation 1; constant ones stay 0."""
    spread = x.std(0)
    scaled: np.ndarray = (x - x.mean(0)) / np.where(spread > 0, spread, 1)
    return scaled


def judged(judge: np.ndarray, space: str, clusters: int, seed: int = 0) -> tuple[float | None, str]:
    """Return gain and word of K-means on samples without labels, in the space (n, d) in which they are judged."""
    cluster = kmeans(judge, clusters, np.random.default_rng(seed), starts=STARTS).cluster
    comparison = compare_clusters(cluster, clusters, {space: judge}, (space, judge), None, (), Streams(seed))
    value = None if comparison.groups is None else comparison.groups.gain
    return None if value is None else round(value, 2), verdict_of(comparison).word


def noise(name: str) -> list[tuple[float | None, str]]:
    """Return gain and word of each seed of a kind of noise."""
    randoms = [np.random.default_rng(seed) for seed in range(SEEDS)]
    if name in NOISY_IMAGES:
        spaces = [(judging_space_of(NOISY_IMAGES[name](rng)), "joint", IMAGE_CLUSTERS) for rng in randoms]
    else:
        draw, clusters = NOISE[name]
        spaces = [(standardised(draw(rng)), "standardised", clusters) for rng in randoms]
    return [judged(*space, seed) for seed, space in enumerate(spaces)]


def tuning_set(name: str) -> list[tuple[float | None, str]]:
    """Return gain and word of a tuning set."""
    spaces, kind = (
        (table_spaces(TABLES[name]), "standardised") if name in TABLES else (picture_spaces(IMAGES[name]), "joint")
    )
    _, judge, _, y = spaces
    return [judged(judge, kind, len(np.unique(y)))]


def measure() -> None:
    """Measure the noise and the sets that have no words in the file, and write the file after each: gains and words."""
    kept: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"noise": {}, "sets": {}}
    for kind, names, of in (("noise", [*NOISE, *NOISY_IMAGES], noise), ("sets", [*TABLES, *IMAGES], tuning_set)):
        for name in names:
            if not kept[kind].get(name, {}).get("words"):
                found = of(name)
                words = Counter(word for _, word in found)
                kept[kind][name] = {"words": dict(words), "gains": [value for value, _ in found]}
                RESULTS.write_text(json.dumps(kept).replace('}, "', '},\n"') + "\n")
                print(name, kept[kind][name], file=sys.stderr, flush=True)


def judging_space_of(images: np.ndarray) -> np.ndarray:
    """Return the space in which images without classes are judged."""
    _, judge, _, _ = picture_spaces(lambda: (images, np.zeros(len(images), int)))
    return judge


if __name__ == "__main__":
    with threadpool_limits(1):
        measure()
