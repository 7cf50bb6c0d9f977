"""Whether K-means finds more among samples with groups than among random ones: on tuning sets, and on noise.

    python -m shoal_research.label_free.groups        # ten minutes on a core; needs the packaged encoder

The bounds of the verdict (`NO_GROUPS_GAIN`, `GROUPS_GAIN`) must lie above every noise, whatever it looks like.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from shoal.methods.scores.no_groups import gain_over_no_groups
from shoal_research.label_free.by_site import picture_spaces, table_spaces
from shoal_research.label_free.calibrate import FILE
from shoal_research.label_free.tuning_sets import IMAGES, TABLES

RESULTS = FILE.with_name("label_free_groups.json")
SEEDS = 20
IMAGE_SEEDS = 3
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
}
"""Rows without groups, or with one that is too small to tell, and the number of clusters that is looked for."""
NOISY_IMAGES: Mapping[str, Draw] = {
    "uniform pixels": lambda rng: rng.integers(0, 256, (400, 32, 32, 3)).astype(np.uint8),
    "grey pixels": lambda rng: np.clip(rng.normal(128, 40, (400, 28, 28)), 0, 255).astype(np.uint8),
    "blocks": lambda rng: np.kron(rng.integers(0, 256, (400, 4, 4, 3)), np.ones((1, 8, 8, 1))).astype(np.uint8),
}
"""Images without groups; six clusters are looked for."""


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


def gain(x: np.ndarray, clusters: int, seed: int = 0) -> float | None:
    """Return the gain of K-means on samples (n, d), rounded; None where clusters are too small to tell."""
    value = gain_over_no_groups(x, clusters, np.random.default_rng(seed)).gain
    return None if value is None else round(value, 2)


def measure() -> dict[str, Any]:
    """Return the gains on noise by name and seed, and on the tuning sets by name."""
    noise = {
        name: [gain(standardised(draw(np.random.default_rng(seed))), clusters, seed) for seed in range(SEEDS)]
        for name, (draw, clusters) in NOISE.items()
    }
    for name, draw in NOISY_IMAGES.items():
        drawn = [draw(np.random.default_rng(seed)) for seed in range(IMAGE_SEEDS)]
        noise[name] = [gain(judging_space_of(images), 6, seed) for seed, images in enumerate(drawn)]
    sets = {}
    for make_spaces, kind in ((table_spaces, TABLES), (picture_spaces, IMAGES)):
        for name, make in kind.items():
            _, judge, _, y = make_spaces(make)
            sets[name] = gain(judge, len(np.unique(y)))
    return {"noise": noise, "sets": sets}


def judging_space_of(images: np.ndarray) -> np.ndarray:
    """Return the space in which images without classes are judged."""
    _, judge, _, _ = picture_spaces(lambda: (images, np.zeros(len(images), int)))
    return judge


if __name__ == "__main__":
    with threadpool_limits(1):
        RESULTS.write_text(json.dumps(measure(), indent=1) + "\n")
