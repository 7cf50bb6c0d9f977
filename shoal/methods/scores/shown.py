"""Features of a few samples, small enough to be kept with a run and drawn.

Symbols in shapes: n samples, d features, m samples drawn, p principal components.
"""

from __future__ import annotations

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

SAMPLES = 600
"""At most so many samples are drawn: points that can still be told apart in a figure."""
COMPONENTS = 50
"""Of more features than these the first principal components are kept."""


def shown_features(features: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray] | None:
    """Some samples and their features, of many features the principal components among the samples drawn.

    Distances between the samples stay as they are but for the components that are left out. The sign of a component is
    that with which its largest loading is positive, so that it does not depend on the library that found it.

    Args:
        features: (n, d).
        rng: draws the samples, where there are more than `SAMPLES`.

    Returns:
        Their numbers, ascending, int64 (m,), and their features less their mean, float32 (m, p); None where features
        are not finite or there are fewer than two samples.
    """
    rows = np.arange(len(features))
    if len(rows) > SAMPLES:
        rows = np.sort(rng.choice(len(rows), SAMPLES, replace=False))
    found = features[rows].astype(np.float64)
    if len(rows) < 2 or not np.isfinite(found).all():
        return None
    found -= found.mean(0)
    if found.shape[1] > COMPONENTS:
        with threadpool_limits(1):
            _, _, directions = np.linalg.svd(found, full_matrices=False)
            directions = directions[:COMPONENTS]
            largest = np.abs(directions).argmax(1)
            directions *= np.sign(directions[np.arange(len(directions)), largest])[:, None]
            found = found @ directions.T
    return rows.astype(np.int64), found.astype(np.float32)
