"""The chemistry of 178 wines of three cultivars, which come with scikit-learn."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_wine

from shoal_research.unseen.samples import Samples


def take(samples: int, generator: np.random.Generator) -> Samples:
    """Return wines in random order; all where there are no more than `samples`."""
    wine = load_wine()
    rows = generator.permutation(len(wine.data))[:samples]
    columns = tuple(name.replace("/", "_per_") for name in wine.feature_names)
    return Samples(wine.data[rows], wine.target[rows], ("cultivar-0", "cultivar-1", "cultivar-2"), columns)
