"""Predictions of a trained model for samples.

Symbols in shapes: n samples, c clusters, d features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from shoal.data.sets.lazy_array import LazyArray, SampleArray


class Prediction(NamedTuple):
    """The prediction of a trained model for n samples: `cluster` int64 (n,), `soft` (n, c), `embedding` (n, d)."""

    cluster: Tensor
    soft: Tensor
    embedding: Tensor


class ShardPredictions(NamedTuple):
    """The predictions for n consecutive samples, as far as an evaluation uses them.

    Attributes:
        cluster: int64 (n,), on the CPU.
        columns: c, the number of columns of `soft`.
        embedding: (m, d) of the samples whose features are judged, in their order; of all samples where K-means is to
            find clusters among them.
    """

    cluster: Tensor
    columns: int
    embedding: Tensor


@dataclass(frozen=True)
class Assignment:
    """The cluster of every sample of an evaluation: training samples in its order, then test samples.

    Attributes:
        cluster: int64 (n,).
        confidence: float32 (n,) in [0, 1]: how sure the model is of that cluster, not how often it is right.
        clusters: c, the number of clusters, empty ones included.
        features: (n, d), the model's features of each sample, where they are many computed for those asked for.
        centres: (c, d) among the features, where centres define the clusters; confidence is then the margin of
            `shoal.methods.scores.assignment.nearest_centres`, otherwise the model's probability of the cluster.
        distance: float32 (n,), from each sample's features to the centre of its cluster; None without centres.
        less_sites: whether the features of clients' samples have lost what is their site's.
    """

    cluster: Tensor
    confidence: Tensor
    clusters: int
    features: Tensor | LazyArray
    centres: Tensor | None = None
    distance: Tensor | None = None
    less_sites: bool = False

    @property
    def feature_rows(self) -> SampleArray:
        """The features as an array whose rows are indexed by numpy."""
        if isinstance(self.features, LazyArray):
            return self.features
        array: np.ndarray = self.features.float().cpu().numpy()
        return array
