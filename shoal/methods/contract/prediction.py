"""What a trained model says of samples.

Symbols in shapes: n samples, c clusters, d features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor


class Prediction(NamedTuple):
    """What a trained server says of n samples: `cluster` int64 (n,), `soft` (n, c), `embedding` (n, d)."""

    cluster: Tensor
    soft: Tensor
    embedding: Tensor


Shared = Literal["nothing", "clusters", "features"]
"""What of a model's answers for all samples an evaluation uses, so that workers may make it in parts."""


class ShardPredictions(NamedTuple):
    """What an evaluation uses of predictions for n samples in a row.

    Attributes:
        cluster: int64 (n,), on the CPU.
        columns: c, how many columns `soft` has.
        embedding: (m, d) of the samples whose features are judged, in their order; of all where K-means is to find
            clusters among them, and (0, 0) where no features are judged.
    """

    cluster: Tensor
    columns: int
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
            `shoal.methods.scores.assignment.nearest_centres`, else the model's probability of the cluster.
        distance: float32 (n,), from each sample's features to the centre of its cluster, where there are centres.
    """

    cluster: Tensor
    confidence: Tensor
    clusters: int
    features: Tensor
    centres: Tensor | None = None
    distance: Tensor | None = None
