"""When a cluster may be split: it has come to rest as a whole, while single clients still pull away (eq. 32, 33).

Three readings of it, by `method.criterion`. A split also needs gamma_max (eq. 39): `bipartition.ready_to_split`.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.methods.cfl.measure import ClusterMeasure


def absolute(measure: ClusterMeasure, eps1: float, eps2: float) -> bool:
    """The paper's: the mean update is shorter than eps1, and the longest client update is longer than eps2."""
    return measure.mean_norm < eps1 and measure.max_norm > eps2


def relative(measure: ClusterMeasure, ratio: float, floor: float, peak: float) -> bool:
    """The same without units, in one round; whether it lasts is counted by `Node.calm`.

    Args:
        measure: of the cluster.
        ratio: largest ratio of the mean update's norm to the longest client update's.
        floor: the longest client update must be longer than this share of `peak`.
        peak: the largest median norm of any cluster so far.
    """
    return measure.mean_norm < ratio * measure.max_norm and measure.max_norm > floor * peak


def scheduled(round: int, schedule: Sequence[int]) -> bool:
    """At given rounds, as the paper's figures show."""
    return round in schedule


def settled(round: int, born: int, first_split: int, settle: int) -> bool:
    """Of the relative criterion: whether a cluster born in round `born` has trained long enough to be judged.

    That is `settle` rounds, and the run `first_split`: without units, a model that has hardly begun looks at rest.
    """
    return round >= first_split and round - born >= settle
