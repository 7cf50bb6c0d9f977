"""Features of a few samples, small enough to be stored with a run and drawn.

Symbols in shapes: n samples, d features, m samples drawn, p principal components.
"""

from __future__ import annotations

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from shoal.data.sets.lazy_array import SampleArray

SAMPLES = 600
"""Most samples in a figure: points that can still be told apart."""
COMPONENTS = 50
"""Principal components that replace more features than these."""


def shown_features(features: SampleArray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray] | None:
    """Return some samples and their features, of many features the principal components among these samples.

    Distances between the samples only change by the components that are left out. A component's sign makes its largest
    loading positive.

    Args:
        features: (n, d).
        rng: draws the samples, where there are more than `SAMPLES`.

    Returns:
        Positions of the samples, ascending, int64 (m,), and their features less their mean, float32 (m, p); None where
        features are not finite or there are fewer than two samples.
    """
    from sklearn.decomposition import PCA  # here: it takes seconds to import

    rows = np.arange(len(features))
    if len(rows) > SAMPLES:
        rows = np.sort(rng.choice(len(rows), SAMPLES, replace=False))
    shown = features[rows].astype(np.float64)
    if len(rows) < 2 or not np.isfinite(shown).all():
        return None
    shown -= shown.mean(0)
    if shown.shape[1] > COMPONENTS:
        with threadpool_limits(1):
            shown = PCA(min(COMPONENTS, len(shown)), svd_solver="full").fit_transform(shown)
    return rows.astype(np.int64), shown.astype(np.float32)
