"""Whether samples have groups at all: K-means on them beside K-means on random samples that have none.

K-means lowers the sum of squared distances of any samples. How much more than that of samples without groups tells
whether there are some: one Gaussian of the same covariance (SigClust, Liu et al. 2008), independent columns of the same
means and variances, and independent principal axes (the two uniform boxes of the gap statistic, Tibshirani et al.
2001). Where samples are skewed, the Gaussian is as skewed along its principal axes, and once more along columns. All
draws need the moments of the samples alone, up to the third. Each of them is the one that some noise looks like, so
that the smallest of the four gains counts.

Symbols in shapes: n samples, d columns, c clusters.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from shoal.methods.clustering.k_means import kmeans

DRAWS = 100
"""Random sets of each kind."""
STARTS = 3
"""Starts of K-means on the samples and on each random set, of which the shares are compared."""
STARTS_FOR_SMALL = 30
"""Starts of K-means where small clusters are looked for: a few tens of samples far away are missed by one in ten."""
MAX_ROWS = 1_000
"""Samples that are judged, a draw of more: each random set has as many."""
MAX_COLUMNS = 32
"""Columns that are judged; of more the principal components are taken."""
EVEN_SHARE = 1 / 3
SMALL_SHARE = 0.02
"""A cluster below this part of an even share, or below this share of all samples, is left out with its samples: a few
samples far away make any sum small."""
MAX_LEVELS = 50
"""Most values of a column of whole numbers."""
GROUPS_GAIN = 4.0
"""Gain from which samples have groups. Noise has up to 3.8, iris and wine 4.5 to 5, digits 20."""
NO_GROUPS_GAIN = 1.0
"""Gain below which there are none."""
MOST_SKEWNESS = 3.5
"""Standard errors up to which samples count as symmetric, as random ones without groups are."""
LEAST_SPREAD = 0.01
"""Share of the largest deviation along an axis below which K-means hardly sees another."""
LEAST_SKEWNESS = 1e-3
"""Skewness below which draws are Gaussian."""

Draw = Callable[[np.random.Generator], np.ndarray]


@dataclass(frozen=True)
class Groups:
    """How sure it is that samples have groups.

    Attributes:
        gain: of K-means over samples without groups, in standard deviations over their draws: the first below
            `NO_GROUPS_GAIN`, or the smallest; None where fewer than two clusters are large enough.
        clusters: clusters that are large enough.
        samples: their number of samples.
        symmetric: whether they are, so that no small group is likely to lie beside a large one.
        sites: number of sites of whose own samples the gain is the mean.
    """

    gain: float | None
    clusters: int
    samples: int
    symmetric: bool = True
    sites: int = 1

    @property
    def clear(self) -> bool:
        """Whether there are groups: the gain is `GROUPS_GAIN` or more."""
        return self.gain is not None and self.gain >= GROUPS_GAIN


def mean_over_sites(parts: Sequence[Groups]) -> Groups:
    """Return the mean gain of sites that were judged each by its own samples, weighted by their numbers of samples.

    A site whose clusters are too small to tell counts as one without groups.
    """
    samples = [part.samples for part in parts]
    gain = float(np.average([part.gain or 0.0 for part in parts], weights=samples))
    symmetric = all(part.symmetric for part in parts)
    return Groups(gain, max(part.clusters for part in parts), sum(samples), symmetric, len(parts))


def gain_over_no_groups(
    x: np.ndarray, clusters: int, rng: np.random.Generator, *, widths: Sequence[int] = ()
) -> Groups:
    """Return by how many standard deviations K-means finds more in samples than in random ones without groups.

    Args:
        x: (n, d), finite.
        clusters: c.
        rng: draws starts and random samples.
        widths: numbers of columns that code one measurement each, which has one of them set; none: each column is one.
    """
    large, clusters, by_null = gains(x.astype(np.float64), clusters, rng, widths)
    return Groups(min(by_null, default=None), clusters, len(large), are_symmetric(large))


def gains(
    x: np.ndarray, clusters: int, rng: np.random.Generator, widths: Sequence[int] = ()
) -> tuple[np.ndarray, int, list[float]]:
    """Return the samples (m, k) of large clusters, how many these are, and the gain over each kind of random samples.

    One below `NO_GROUPS_GAIN` is the last, and there are none where fewer than two clusters are large. Arguments as of
    `gain_over_no_groups`.
    """
    if len(x) > MAX_ROWS:
        x = x[np.sort(rng.permutation(len(x))[:MAX_ROWS])]
    if x.shape[1] > MAX_COLUMNS:
        x = principal_components(x, MAX_COLUMNS)
        widths = ()
    large = np.zeros(len(x), bool)
    while not large.all():
        if clusters < 2 or len(x) <= clusters:
            return x, clusters, []
        cluster = kmeans(x, clusters, rng, starts=STARTS_FOR_SMALL).cluster
        share = np.bincount(cluster, minlength=clusters) / len(x)
        kept = share >= max(EVEN_SHARE / clusters, SMALL_SHARE)
        large = kept[cluster]
        x = x[large]
        clusters = int(kept.sum())
    left = float(np.mean(shares_left([x] * STARTS, clusters, rng)))
    by_null: list[float] = []
    columns = np.eye(x.shape[1])
    principal = np.linalg.eigh(np.atleast_2d(np.cov(x.T)))[1]
    for axes, uniform in ((principal, False), (columns, True), (principal, True), (columns, False)):
        if not by_null or by_null[-1] >= NO_GROUPS_GAIN:
            draw = without_groups(x, axes, widths, uniform=uniform)
            random = shares_left((draw(rng) for _ in range(DRAWS)), clusters, rng)
            by_null.append(float((random.mean() - left) / max(random.std(), 1e-12)))
    return x, clusters, by_null


def are_symmetric(x: np.ndarray) -> bool:
    """Return whether samples (n, d) are skewed along no principal axis."""
    skewed = skewness(principal_components(x, x.shape[1]))
    return bool(np.abs(skewed).max() <= MOST_SKEWNESS * np.sqrt(6 / len(x)))


def skewness(along: np.ndarray) -> np.ndarray:
    """Return the skewness of each column of centred numbers (n, d), about 0 of those that hardly vary, (d,)."""
    spread = along.std(0)
    cubes = np.mean((along / np.maximum(spread, LEAST_SPREAD * spread.max(initial=1e-300))) ** 3, 0)
    return np.asarray(cubes)


def shares_left(sets: Iterable[np.ndarray], clusters: int, rng: np.random.Generator) -> np.ndarray:
    """Return the share of all squares about the mean that K-means leaves within clusters of each set, (sets,)."""
    from sklearn.cluster import KMeans  # here: it takes seconds to import, and not every worker clusters
    from sklearn.exceptions import ConvergenceWarning

    shares = []
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for x in sets:
            model = KMeans(clusters, n_init=STARTS, random_state=int(rng.integers(2**31))).fit(x)
            shares.append(model.inertia_ / max(np.square(x - x.mean(0)).sum(), 1e-12))
    return np.array(shares)


def principal_components(x: np.ndarray, count: int) -> np.ndarray:
    """Return samples (n, d) along their first principal components, (n, count)."""
    u, s, _ = np.linalg.svd(x - x.mean(0), full_matrices=False)
    rows: np.ndarray = u[:, :count] * s[:count]
    return rows


def without_groups(x: np.ndarray, axes: np.ndarray, widths: Sequence[int], *, uniform: bool) -> Draw:
    """Return what draws as many samples, independent along some axes, of the mean and the variances of others there.

    A column of two values gets these, as often as it has them; one of whole numbers is rounded to them; columns that
    code one measurement have one of them set, as often as each is.

    Args:
        x: (n, d).
        axes: orthonormal columns (d, d).
        widths: see `gain_over_no_groups`.
        uniform: whether draws are uniform; else they are gamma distributed, as skewed as the samples: Gaussian if these
            are symmetric.
    """
    mean = x.mean(0)
    along = (x - mean) @ axes
    root = along.std(0)[:, None] * axes.T
    skewed = skewness(along)
    shape = 4 / np.maximum(skewed**2, LEAST_SKEWNESS**2)
    groups = np.split(np.arange(x.shape[1]), np.cumsum(widths or np.ones(x.shape[1], int))[:-1])
    low, high = x.min(0), x.max(0)
    levels = [levels_of(column) for column in x.T]

    def draw(rng: np.random.Generator) -> np.ndarray:
        y: np.ndarray = np.sign(skewed) * (rng.gamma(shape, size=x.shape) - shape) / np.sqrt(shape)
        if uniform:
            y = rng.uniform(-np.sqrt(3), np.sqrt(3), x.shape)
        y = y @ root + mean
        for columns in groups:
            first = columns[0]
            column_levels = levels[first]
            if len(columns) > 1 or (column_levels is not None and len(column_levels) == 2):
                often = (x[:, columns] > low[columns]).mean(0).cumsum()
                value = np.searchsorted(often, np.argsort(np.argsort(-y[:, first])) / len(x), side="right")
                y[:, columns] = np.where(value[:, None] == np.arange(len(columns)), high[columns], low[columns])
            elif column_levels is not None:
                y[:, first] = column_levels[np.abs(y[:, columns] - column_levels).argmin(1)]
        return y

    return draw


def levels_of(column: np.ndarray) -> np.ndarray | None:
    """Return the values of a column of whole numbers in any unit, with those between that none has; None for others.

    >>> levels_of(np.array([1.0, 0.5, 2.0]))
    array([0.5, 1. , 1.5, 2. ])
    """
    values = np.unique(column)
    if not 2 <= len(values) <= MAX_LEVELS:
        return None
    step = np.diff(values).min()
    number = (values - values[0]) / step
    if number[-1] > MAX_LEVELS or np.abs(number - number.round()).max() > 1e-3:
        return None
    levels: np.ndarray = values[0] + step * np.arange(round(number[-1]) + 1)
    return levels
