"""The chemistry of 178 wines of three cultivars, which come with scikit-learn."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_wine

from shoal_research.unseen.samples import Samples


def take(label: np.ndarray, generator: np.random.Generator) -> Samples:
    """Return wines in random order, as many as there are labels, with labels of their own."""
    wine = load_wine()
    rows = generator.permutation(len(wine.data))[: len(label)]
    columns = tuple(name.replace("/", "_per_") for name in wine.feature_names)
    return Samples(wine.data[rows], wine.target[rows], ("cultivar-0", "cultivar-1", "cultivar-2"), columns)
