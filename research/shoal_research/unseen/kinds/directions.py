"""Vectors like embeddings: of length 1 in 64 dimensions, a class around each of several directions."""

from __future__ import annotations

import numpy as np

from shoal_research.unseen.samples import Samples

CLASSES = tuple(f"topic-{number}" for number in range(8))
DIMENSIONS = 64
NOISE = 2.6
"""Length of the noise of a vector whose class has a direction of length 1."""
COMMON = 0.8
"""Length of the direction that all vectors share, as embeddings of one encoder do."""


def make(label: np.ndarray, generator: np.random.Generator) -> Samples:
    """Return one vector of length 1 for each label."""
    directions = unit(generator.normal(size=(len(CLASSES), DIMENSIONS)))
    common = COMMON * unit(generator.normal(size=(1, DIMENSIONS)))
    noise = generator.normal(0, NOISE / np.sqrt(DIMENSIONS), (len(label), DIMENSIONS))
    rows = unit(common + directions[label] + noise)
    return Samples(rows, label, CLASSES, tuple(f"e{number:02}" for number in range(DIMENSIONS)))


def unit(rows: np.ndarray) -> np.ndarray:
    """Return rows with length 1."""
    scaled: np.ndarray = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return scaled
