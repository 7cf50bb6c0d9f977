"""Class sizes of a set, and the sites that hold its samples: uneven in size and in classes, as sites are."""

from __future__ import annotations

import numpy as np

MIN_SITE_SAMPLES = 16
"""A site holds at least so many samples, or its share of them in a tiny set."""
CLASS_EVENNESS = 1.0
"""Shape of the Gamma draws that mix the classes of a site: small values give sites with few classes."""
SITE_EVENNESS = 3.0
"""Shape of the Gamma draws of the sites' sizes: small values give sites of very different size."""


def labels_of_sizes(samples: int, classes: int, ratio: float, generator: np.random.Generator) -> np.ndarray:
    """Return labels in random order whose class sizes fall geometrically, int64 (samples,).

    Args:
        samples: in all, at least one for each class.
        classes: number of classes.
        ratio: of the largest class to the smallest, approximately; 1 for even classes.
        generator: of the order.
    """
    shares = np.geomspace(ratio, 1.0, classes)
    ends = np.round(np.cumsum(shares) / shares.sum() * samples).astype(int)
    sizes = np.diff(ends, prepend=0)
    return generator.permutation(np.repeat(np.arange(classes), sizes))


def deal_to_sites(label: np.ndarray, sites: int, generator: np.random.Generator) -> np.ndarray:
    """Return the site of each sample, int64 (n,): sites differ in size and in their mixture of classes.

    Args:
        label: class of each sample (n,).
        sites: number of sites.
        generator: of the draw, repeated until each site has `MIN_SITE_SAMPLES`.
    """
    classes = int(label.max()) + 1
    minimum = min(MIN_SITE_SAMPLES, len(label) // (3 * sites))
    while True:
        size = generator.gamma(SITE_EVENNESS, size=sites)
        weight = size[:, None] * generator.gamma(CLASS_EVENNESS, size=(sites, classes))
        share = weight / weight.sum(axis=0)
        found = np.array([generator.choice(sites, p=share[:, each]) for each in label])
        if np.bincount(found, minlength=sites).min() >= minimum:
            return found
