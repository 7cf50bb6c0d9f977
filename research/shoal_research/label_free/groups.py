"""The verdict without labels of noise, planted groups, the tuning sets and the unseen ones, by three nulls.

    python -m shoal_research.label_free.groups        # half an hour on a core; needs the packaged encoder

What is not in the kept file is measured, and the tables of research/docs/representations.md are made from it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from shoal.core.streams import Streams
from shoal.engine.workers.null_baselines import column_spaces, encoded, judging_space, pixels
from shoal.methods.auto import ENCODER
from shoal.methods.clustering.k_means import kmeans
from shoal.methods.scores.baselines import STARTS, Comparison
from shoal.methods.scores.neighbours import nearest_samples, neighbour_agreement
from shoal.methods.scores.no_groups import MAX_ROWS, Groups, are_symmetric, gains
from shoal.methods.scores.verdict import verdict_of
from shoal.models.frozen import frozen_encoder
from shoal_research.label_free.drawn_images import Set
from shoal_research.label_free.tables import GROUPS, tuning_figures, write_pages
from shoal_research.label_free.tuning_sets import IMAGES, TABLES, shipped
from shoal_research.unseen.sets import SEED, SETS, samples_of

SEEDS = 20
ROWS = 600
IMAGES_OF_NOISE = 200
DISTANCES = (3, 4, 6, 12)
"""Of a small group from a large one, in deviations."""
DIGITS = 2
Draw = Callable[[np.random.Generator], np.ndarray]


def uniform(columns: int) -> Draw:
    """Return what draws rows of uniform columns."""
    return lambda rng: rng.random((ROWS, columns))


def gaussian(dimensions: int, columns: int) -> Draw:
    """Return what draws rows of a Gaussian of some dimensions, in more columns."""
    return lambda rng: rng.normal(size=(ROWS, dimensions)) @ rng.normal(size=(dimensions, columns))


def ball(rng: np.random.Generator) -> np.ndarray:
    """Draw rows in a ball of three dimensions."""
    x = rng.normal(size=(ROWS, 3))
    drawn: np.ndarray = x / np.linalg.norm(x, axis=1, keepdims=True) * rng.random((ROWS, 1)) ** (1 / 3)
    return drawn


def with_a_group(share: float, distance: float, rng: np.random.Generator) -> np.ndarray:
    """Draw rows of three Gaussian columns, of which a share is far away in the first."""
    x = rng.normal(size=(ROWS, 3))
    x[: round(ROWS * share), 0] += distance
    return x


def blobs(rng: np.random.Generator) -> np.ndarray:
    """Draw rows of four groups."""
    drawn: np.ndarray = rng.normal(size=(ROWS, 5)) + 8 * rng.normal(size=(4, 5))[rng.integers(0, 4, ROWS)]
    return drawn


def pixels_of_noise(rng: np.random.Generator) -> np.ndarray:
    """Draw images of uniform pixels."""
    return rng.integers(0, 256, (IMAGES_OF_NOISE, 32, 32, 3)).astype(np.uint8)


def grey_noise(rng: np.random.Generator) -> np.ndarray:
    """Draw grey images of Gaussian pixels."""
    return np.clip(rng.normal(128, 40, (IMAGES_OF_NOISE, 28, 28)), 0, 255).astype(np.uint8)


def blocks(rng: np.random.Generator) -> np.ndarray:
    """Draw images of uniform squares."""
    return np.kron(rng.integers(0, 256, (IMAGES_OF_NOISE, 4, 4, 3)), np.ones((1, 8, 8, 1))).astype(np.uint8)


KINDS: Mapping[str, Mapping[str, tuple[Draw, int]]] = {
    "uniform columns": {f"{columns}": (uniform(columns), 4) for columns in (2, 3, 5)} | {"48": (uniform(48), 8)},
    "columns of few values": {
        "5 yes or no": (lambda rng: (rng.random((ROWS, 5)) > 0.5).astype(float), 4),
        "12 yes or no, uneven": (lambda rng: (rng.random((ROWS, 12)) > rng.random(12)).astype(float), 4),
        "6 of 1 to 5": (lambda rng: rng.integers(1, 6, (ROWS, 6)).astype(float), 4),
    },
    "one Gaussian": {
        "6 columns": (gaussian(6, 6), 4),
        "3 dimensions in 20 columns": (gaussian(3, 20), 4),
    },
    "heavy tails": {"t of 2 degrees": (lambda rng: rng.standard_t(2, size=(ROWS, 6)), 4)},
    "drawn for the rule alone": {
        "2 dimensions in 10 columns": (gaussian(2, 10), 3),
        "a ball": (ball, 4),
        "exponential": (lambda rng: rng.exponential(size=(ROWS, 4)), 4),
        "lognormal": (lambda rng: np.exp(rng.normal(size=(ROWS, 4))), 3),
        "beta of 1 and 4": (lambda rng: rng.beta(1, 4, size=(ROWS, 5)), 4),
        "mixed exponentials": (lambda rng: rng.exponential(size=(ROWS, 4)) @ rng.normal(size=(4, 6)), 4),
        "half-normal": (lambda rng: abs(rng.normal(size=(ROWS, 4))), 4),
        "a triangle": (lambda rng: rng.dirichlet(np.ones(3), ROWS), 3),
        "a long Gaussian": (lambda rng: rng.normal(size=(ROWS, 8)) * np.geomspace(1, 4, 8), 5),
    },
    "a small group": {
        f"{ratio}:1, {distance} apart": (partial(with_a_group, 1 / (ratio + 1), distance), 2)
        for ratio in (9, 19)
        for distance in DISTANCES
    },
    "blobs": {"4 groups": (blobs, 4)},
    "images of noise": {"pixels": (pixels_of_noise, 6), "grey": (grey_noise, 6), "blocks": (blocks, 6)},
}
"""What has no groups, or one that is too small to tell, or some; with the number of clusters that is looked for."""
ONCE = ("images of noise", "a small group", "blobs")
"""All other kinds are drawn with `SEEDS` seeds, and with as many more."""


def joint_space(images: np.ndarray) -> np.ndarray:
    """Return the space in which images uint8 (n, height, width[, 3]) are judged, (n, d)."""
    whole = images.reshape(*images.shape[:3], -1).transpose(0, 3, 1, 2)
    x = torch.from_numpy(np.ascontiguousarray(whole)).float() / 255
    network = frozen_encoder(ENCODER)
    return judging_space({"pixels": pixels(x), ENCODER: encoded(network, x)})[1]


def judged(x: np.ndarray, clusters: int, seed: int = 0) -> list[Any]:
    """Return gains over nulls and word of K-means on rows (n, d) or images, as a run judges them."""
    if len(x) > MAX_ROWS:
        x = x[np.sort(np.random.default_rng(0).permutation(len(x))[:MAX_ROWS])]
    space = "joint"
    if x.dtype == np.uint8:
        z = joint_space(x)
    else:
        space, z = judging_space(column_spaces(x.astype(np.float32), ()))
    cluster = kmeans(z, clusters, np.random.default_rng(seed), starts=STARTS).cluster
    agreement = neighbour_agreement(cluster, nearest_samples(z))
    rng = Streams(seed).numpy("samples without groups")
    large, count, found = gains(z.astype(np.float64), clusters, rng)
    groups = Groups(min(found, default=None), count, len(large), are_symmetric(large))
    word = verdict_of(Comparison(len(z), space, agreement, {space: agreement}, groups=groups)).word
    return [np.round(found, DIGITS).tolist(), word]


def drawn(draw: Draw, clusters: int, seed: int) -> list[Any]:
    """Return what `judged` returns for a draw of a kind."""
    return judged(draw(np.random.default_rng(seed)), clusters, seed)


def one_set(make: Callable[[], Set], seed: int) -> list[Any]:
    """Return what `judged` returns for a set with classes."""
    x, y = make()
    return judged(x, len(np.unique(y)), seed)


def unseen(key: str) -> Set:
    """Return samples and classes of a set of the study of unseen data."""
    samples = samples_of(key, SEED)[0]
    return samples.x, samples.label


def planned() -> Iterator[tuple[str, str, int, Callable[[int], list[Any]]]]:
    """Yield what is measured: the kind, the name, how many seeds, and a function of the seed."""
    for kind, named in KINDS.items():
        for name, of_kind in named.items():
            yield kind, name, SEEDS, partial(drawn, *of_kind)
    sets: Mapping[str, Callable[[], Set]] = {"wine": partial(shipped, "wine"), **TABLES, **IMAGES}
    for name, make in sets.items():
        yield "sets", name, 1, partial(one_set, make)
    for key in SETS:
        yield "unseen", key, 1, partial(one_set, partial(unseen, key))
    for kind, named in KINDS.items():
        for name, of_kind in named.items():
            if kind not in ONCE:
                yield kind, name, 2 * SEEDS, partial(drawn, *of_kind)


def measure() -> None:
    """Measure what the file does not hold, and write it after each."""
    kept: dict[str, dict[str, list[Any]]] = {}
    if GROUPS.exists():
        kept = json.loads(GROUPS.read_text())
    for kind, name, count, of_seed in planned():
        rows = kept.setdefault(kind, {}).setdefault(name, [])
        if len(rows) < count:
            rows += [of_seed(seed) for seed in range(len(rows), count)]
            GROUPS.write_text(json.dumps(kept).replace(']], "', ']],\n"') + "\n")
            print(kind, name, rows, file=sys.stderr, flush=True)


if __name__ == "__main__":
    with threadpool_limits(1):
        measure()
    write_pages(tuning_figures())
