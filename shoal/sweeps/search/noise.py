"""The difference between the scores of trials that comes from their seeds alone.

All trials have the same seeds. What a seed does to all trials alike is no noise between them: the noise is what is left
after the mean of each trial and the mean of each seed are subtracted (a two-way layout without interaction).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Noise:
    """The spread of scores over seeds.

    Attributes:
        deviation: standard deviation of one run's score around what its trial and its seed explain.
        seeds: number of runs of a trial.
        trials: number of trials that the deviation was computed from.
        difference: two trials whose mean scores are closer than this cannot be told apart (95 %, for one pair that was
            chosen beforehand; the best of many is always somewhat lucky).
    """

    deviation: float
    seeds: int
    trials: int
    difference: float


def noise_of(scores: Sequence[Sequence[float]]) -> Noise | None:
    """Return the noise of trials with several seeds.

    Args:
        scores: (trials, seeds), the same seeds in all trials.

    Returns:
        None with one seed, or fewer than two trials: then the noise is unknown.

    >>> noise_of([(0.5, 0.6), (0.7, 0.8)]).deviation < 1e-9
    True
    """
    if len(scores) < 2 or len(scores[0]) < 2:
        return None
    from scipy.special import stdtrit  # imported late: every flow imports this module

    table = np.asarray(scores, dtype=float)
    trials, seeds = table.shape
    residuals = table - table.mean(1, keepdims=True) - table.mean(0, keepdims=True) + table.mean()
    freedom = (trials - 1) * (seeds - 1)
    deviation = math.sqrt(float((residuals**2).sum()) / freedom)
    difference = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * deviation * math.sqrt(2 / seeds)
    return Noise(deviation, seeds, trials, difference)
