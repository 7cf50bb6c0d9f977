"""A random part of Fashion-MNIST's training images."""

from __future__ import annotations

import numpy as np

from shoal.data.sets.prepare import prepare
from shoal.engine.settings import places
from shoal_research.unseen.samples import Samples

SET = "fashion-mnist"


def take(label: np.ndarray, generator: np.random.Generator) -> Samples:
    """Return as many random images as there are labels, 28 x 28 pixels in grey, with labels of their own.

    Raises:
        DataError: the set is neither in the store nor in the mirror, and cannot be downloaded.
    """
    prepared = prepare(SET, places.store(), mirror=places.mirror())
    assert prepared.train_y is not None, "Fashion-MNIST has labels"
    rows = np.sort(generator.permutation(len(prepared.train_x))[: len(label)])
    own = np.asarray(prepared.train_y[rows])
    return Samples(np.asarray(prepared.train_x[rows, 0]), own, tuple(prepared.manifest.class_names))
