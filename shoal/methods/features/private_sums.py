"""What a federated clustering does differently with `privacy.clip`, so that noise covers every message.

A row is cut to the length `privacy.clip` where it is clustered, so that it changes each sum by a known length. The
space follows from a noisy histogram of each column, whose bins are the same for all data, so that bounds of columns
need not be known, and is refined by noisy moments; the root mean square length of rows is then about 1. Landmarks and
starts are centres of Gaussian draws with the variances of that space, which tell no more; starts among landmarks are
centres of these. Clusters of fewer rows than the noise explains stay where they are.

Source: Su, Cao, Li, Bertino and Jin 2016, "Differentially Private K-Means Clustering" (DPLloyd: few iterations from
one start).

Symbols in shapes: n samples, d columns, k dimensions, c clusters, b bins, s sets.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from shoal.core.streams import Streams
from shoal.methods.clustering.k_means import kmeans
from shoal.methods.contract.context import MethodError
from shoal.methods.contract.message import Tensors

ITERATIONS = 5
"""Iterations of K-means, and then steps of EM."""
SURE = 3.0
"""Standard deviations of noise above which a count counts."""
EDGES = 2.0 ** torch.arange(-20, 31, dtype=torch.float64)
"""Bounds of bins of magnitudes: from 1e-6 to 1e9."""
BINS = 2 * len(EDGES) + 1
"""Bins of one column: those of negative values, of values near 0, and of positive ones."""
DRAWS = 4096
"""Draws whose centres are starts or landmarks."""
LEAST_VARIANCE = 0.05
"""Share of the mean variance below which no variance falls: noise makes some of them negative."""
NORMAL_MEDIAN = 0.6745
"""Median of the magnitudes of standard normal values."""


def clipped(z: Tensor, clip: float) -> Tensor:
    """Return rows z (n, k), those that are longer than `clip` cut to this length."""
    shortened: Tensor = z * (clip / z.norm(dim=1, keepdim=True).clamp_min(clip))
    return shortened


def column_bins(x: Tensor) -> Tensor:
    """Return how many of the values of each column of x (n, d) lie in each bin, float64 (d, b)."""
    magnitude = torch.bucketize(x.double().abs(), EDGES.to(x.device), right=True)
    place = len(EDGES) + magnitude * x.sign().long()
    counts = torch.zeros(x.shape[1], BINS, dtype=torch.float64, device=x.device)
    return counts.scatter_add_(1, place.T, torch.ones_like(place.T, dtype=torch.float64))


def noise_of(counts: Tensor) -> float:
    """Return the standard deviation of the noise on counts (d, b), of which most are of empty bins."""
    return float(counts.abs().median()) / NORMAL_MEDIAN


def binned_moments(counts: Tensor) -> Tensors:
    """Return moments as of one sample a column: `samples`, `total` and `squares` (d,), of counts with noise (d, b).

    Bins that noise explains count for nothing, and a column without others is taken for constant.

    Raises:
        MethodError: no column has others.
    """
    upper = torch.cat([EDGES, EDGES[-1:] * 2])
    lower = torch.cat([torch.zeros(1, dtype=torch.float64), EDGES])
    middle = (lower + upper) / 2
    places = torch.cat([-middle[1:].flip(0), torch.zeros(1, dtype=torch.float64), middle[1:]])
    width = (upper - lower)[1:]
    widths = torch.cat([width.flip(0), torch.zeros(1, dtype=torch.float64), width])
    # Of so many values noise alone exceeds this about once.
    sure = counts.where(counts > noise_of(counts) * math.sqrt(2 * math.log(counts.numel())), 0)
    if not bool(sure.any()):
        raise MethodError("the noise hides all columns: set privacy.noise lower, or let more clients take part")
    shares = sure / sure.sum(1, keepdim=True).clamp_min(1)
    squares = shares @ (places.square() + widths.square() / 12)
    return {"samples": torch.tensor(1.0, dtype=torch.float64), "total": shares @ places, "squares": squares}


def sure_moments(moments: Tensors, scale: Tensor, noise: float) -> Tensors:
    """Return moments whose variances noise alone does not explain, or the least that it does not.

    Args:
        moments: `samples`, `total` and `squares` (d,) of rows whose mean square length is about 1.
        scale: of each column (d,); 0 for those that are constant.
        noise: standard deviation of the noise on them.
    """
    samples = moments["samples"].clamp_min(1)
    varies = scale > 0
    least = max(LEAST_VARIANCE / max(1, int(varies.sum())), SURE * noise / float(samples))
    squares = torch.maximum(moments["squares"], moments["total"].square() / samples + samples * least)
    return {"samples": samples, "total": moments["total"] * varies, "squares": squares * varies}


def drawn_places(variances: Tensor, count: int, streams: Streams, purpose: str) -> Tensor:
    """Return so many places (count, k), the centres of draws with the variances (k,) of all rows."""
    draws = torch.randn(DRAWS, len(variances), generator=streams.torch(purpose), dtype=torch.float64)
    centres = kmeans((draws * variances.sqrt()).numpy(), count, streams.numpy(purpose), starts=1).centres
    return torch.from_numpy(centres).double()


def moved_surely(centres: Tensor, sums: Tensor, counts: Tensor, noise: float, clip: float) -> Tensor:
    """Return the means of clusters (s, c, k) of sums with noise, no longer than a row is; a doubtful one stays.

    Args:
        centres: before.
        sums: (s, c, k).
        counts: (s, c).
        noise: standard deviation of the noise on counts.
        clip: the greatest length of a row.
    """
    sure = counts > SURE * noise
    means = sums / counts.where(sure, 1)[..., None]
    means = clipped(means.flatten(0, -2), clip).reshape(means.shape)
    return torch.where(sure[..., None], means, centres.double())
