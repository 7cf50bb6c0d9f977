"""The sets that the rules were chosen on: images and tables with labels, some with uneven classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from sklearn import datasets

from shoal.data.sets.prepare import prepare
from shoal.engine.settings import places
from shoal_research.label_free import drawn_images as drawn
from shoal_research.label_free.drawn_images import Set, labels_of

MAX_IMAGES = 2_000


def built_in(name: str, count: int = MAX_IMAGES) -> Set:
    """Return images (n, height, width[, 3]) and classes of a built-in set, a seeded draw."""
    prepared = prepare(name, places.store(), mirror=places.mirror())
    assert prepared.train_y is not None
    order = np.random.default_rng(0).permutation(len(prepared.train_x))[:count]
    x = np.array(prepared.train_x[order]).transpose(0, 2, 3, 1)
    return (x[..., 0] if x.shape[-1] == 1 else x), np.array(prepared.train_y[order])


def thinned(make: Callable[[], Set], ratio: float) -> Set:
    """Return a set whose classes are thinned by a ratio."""
    x, y = make()
    kept = thinned_rows(y, ratio, 0)
    return x[kept], y[kept]


def thinned_rows(y: np.ndarray, ratio: float, seed: int) -> np.ndarray:
    """Return which samples stay, bool (n,): of the class of rank k of c, drawn, ratio^(-k / (c - 1)) of them."""
    rng = np.random.default_rng(seed)
    classes = int(y.max()) + 1
    keep = ratio ** (-rng.permutation(classes) / (classes - 1))
    kept: np.ndarray = rng.random(len(y)) < keep[y]
    return kept


IMAGES: Mapping[str, Callable[[], Set]] = {
    "digits": partial(built_in, "digits"),
    "digits, uneven": partial(thinned, partial(built_in, "digits"), 13),
    "MNIST": partial(built_in, "mnist"),
    "MNIST, uneven": partial(thinned, partial(built_in, "mnist"), 12),
    "MNIST, 300": partial(built_in, "mnist", 300),
    "CIFAR-10": partial(built_in, "cifar10"),
    "CIFAR-10, uneven": partial(thinned, partial(built_in, "cifar10"), 12),
    "patterns 1": partial(drawn.patterns, 1),
    "patterns 2": partial(drawn.patterns, 2),
    "patterns 3": partial(drawn.patterns, 3),
    "strokes": partial(drawn.strokes, 0),
    "strokes, uneven": partial(drawn.strokes, 1, 600, 6, ratio=12),
    "strokes, 64 px": partial(drawn.strokes, 2, 300, 8, 64, shift=5),
    "strokes, far shifts": partial(drawn.strokes, 3, 500, 6, shift=5),
    "shapes": partial(drawn.shapes, 0),
    "shapes, colours": partial(drawn.shapes, 1, colour=True),
    "shapes, 64 px, uneven": partial(drawn.shapes, 2, 500, 64, 10, colour=True),
    "shapes, 16 px": partial(drawn.shapes, 3, 500, 16),
    "colours": partial(drawn.colours, 0),
    "colours, uneven": partial(drawn.colours, 1, 500, ratio=12),
    "gratings": partial(drawn.gratings, 0),
    "gratings, uneven": partial(drawn.gratings, 1, 500, 48, 5, 12),
    "places": partial(drawn.places, 0),
    "places, uneven": partial(drawn.places, 1, 500, 16, 4, 10),
    "blobs": partial(drawn.blobs, 0),
    "blobs, uneven": partial(drawn.blobs, 1, 500, 64, 12),
    "textures": partial(drawn.textures, 0),
}


def shipped(name: str) -> Set:
    """Return a table that comes with scikit-learn."""
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    return x, y


def mixture(
    seed: int,
    classes: int = 4,
    columns: int = 8,
    count: int = 600,
    ratio: float = 1,
    noise: int = 0,
    *,
    units: bool = True,
    tilted: bool = False,
) -> Set:
    """Draw groups around random means: in columns of several units, tilted, or with columns of noise alone."""
    rng, y = labels_of(seed, count, classes, ratio)
    means = rng.normal(0, 3 * np.sqrt(2 / columns), (classes, columns))
    x = np.zeros((count, columns))
    for k in range(classes):
        shape = np.eye(columns)
        if tilted:
            shape = rng.normal(0, 1, (columns, columns))
            shape *= rng.uniform(0.5, 1.6) / np.sqrt((shape**2).sum(1, keepdims=True))
        x[y == k] = means[k] + rng.normal(0, 1, (int((y == k).sum()), columns)) @ shape.T
    x = np.hstack([x, rng.normal(0, 1, (count, noise))])
    return (x * 10 ** rng.uniform(-2, 3, x.shape[1]) if units else x), y


def amounts(seed: int, classes: int = 4, columns: int = 20, count: int = 600, ratio: float = 1) -> Set:
    """Draw whole numbers of a long-tailed distribution, whose means differ by column and class."""
    rng, y = labels_of(seed, count, classes, ratio)
    logarithm = rng.normal(3, 1, columns) + rng.normal(0, 0.6, (classes, columns))[y]
    return np.round(np.exp(logarithm + rng.normal(0, 0.35, (count, columns)))), y


def informative(seed: int, shares: list[float] | None = None) -> Set:
    """Draw groups in some of fifteen columns, of several scales (`make_classification` of scikit-learn)."""
    x, y = datasets.make_classification(
        n_samples=600,
        n_features=15,
        n_informative=6,
        n_redundant=3,
        n_classes=3,
        n_clusters_per_class=1,
        class_sep=1.6,
        weights=shares,
        random_state=seed,
    )
    return x * np.random.default_rng(seed).uniform(0.1, 20, 15), y


TABLES: Mapping[str, Callable[[], Set]] = {
    "breast cancer": partial(shipped, "breast_cancer"),
    "breast cancer, uneven": partial(thinned, partial(shipped, "breast_cancer"), 10),
    "iris": partial(shipped, "iris"),
    "iris, uneven": partial(thinned, partial(shipped, "iris"), 8),
    "digits as a table": partial(shipped, "digits"),
    "digits as a table, uneven": partial(thinned, partial(shipped, "digits"), 13),
    "groups in units": partial(mixture, 0),
    "groups and noise": partial(mixture, 1, noise=10),
    "groups in units, uneven": partial(mixture, 2, ratio=12),
    "tilted groups in units": partial(mixture, 3, tilted=True),
    "groups of one scale": partial(mixture, 4, units=False),
    "tilted groups, uneven": partial(mixture, 5, 5, 6, 1500, 10, tilted=True),
    "tilted groups of one scale": partial(mixture, 6, 3, 10, 900, units=False, tilted=True),
    "amounts": partial(amounts, 0),
    "amounts, uneven": partial(amounts, 1, 5, ratio=12),
    "informative columns 1": partial(informative, 0),
    "informative columns 2": partial(informative, 1),
    "informative columns, uneven": partial(informative, 2, [0.8, 0.12, 0.08]),
}
