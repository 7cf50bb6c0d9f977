"""When a cluster may be split: it has come to rest as a whole, while single clients still pull away (eq. 32, 33).

`method.criterion` chooses one of three readings. A split also needs gamma_max (eq. 39): `bipartition.ready_to_split`.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.methods.cfl.measure import ClusterMeasure


def absolute(measure: ClusterMeasure, eps1: float, eps2: float) -> bool:
    """Return the paper's criterion: the mean update is shorter than eps1, the longest client update is over eps2."""
    return measure.mean_norm < eps1 and measure.max_norm > eps2


def relative(measure: ClusterMeasure, ratio: float, floor: float, peak: float) -> bool:
    """Return the same criterion without units, in one round; `Node.calm` counts how long it has held.

    Args:
        measure: of the cluster.
        ratio: largest ratio of the mean update's norm to the longest client update's.
        floor: the longest client update must be longer than this share of `peak`.
        peak: the largest median norm of any cluster so far.
    """
    return measure.mean_norm < ratio * measure.max_norm and measure.max_norm > floor * peak


def scheduled(round: int, schedule: Sequence[int]) -> bool:
    """Return whether a round is one of the given rounds, as in the paper's figures."""
    return round in schedule
