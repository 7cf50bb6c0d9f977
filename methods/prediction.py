"""What a trained model says of samples.

Symbols in shapes: n samples, c clusters, d features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class Prediction(NamedTuple):
    """What a trained server says of n samples: `cluster` int64 (n,), `soft` (n, c), `embedding` (n, d)."""

    cluster: Tensor
    soft: Tensor
    embedding: Tensor


@dataclass(frozen=True)
class Assignment:
    """The cluster of every sample that an evaluation works on: training samples in its order, then test samples.

    Attributes:
        cluster: int64 (n,).
        confidence: float32 (n,) in [0, 1]: how sure the model is of that cluster, not how often it is right.
        clusters: c, empty ones counted.
        features: (n, d), what the model makes of each sample.
        centres: (c, d) among the features, where clusters are defined by centres; confidence is then the margin of
            `methods.assignment.nearest_centres`, else the model's probability of the cluster.
        distance: float32 (n,), from each sample's features to the centre of its cluster, where there are centres.
    """

    cluster: Tensor
    confidence: Tensor
    clusters: int
    features: Tensor
    centres: Tensor | None = None
    distance: Tensor | None = None
