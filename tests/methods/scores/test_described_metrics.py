"""Descriptions of metrics: names that evaluations give, and what tables of runs show of them."""

from __future__ import annotations

import numpy as np

from shoal.methods.scores.clustering import cluster_balance, crossed, table_scores
from shoal.methods.scores.metrics import DESCRIBED, METRICS, shown_in


def test_names_are_those_that_evaluations_give() -> None:
    given = table_scores(crossed(np.array([0, 0, 1]), np.array([1, 1, 0])))
    assert given.keys() <= DESCRIBED.keys()
    assert len(DESCRIBED) == len(METRICS)
    assert cluster_balance(np.array([2, 2])) == 1
    assert DESCRIBED["balance"].better == "neither"


def test_what_is_seen_while_a_run_goes_on() -> None:
    assert [metric.name for metric in shown_in("progress")] == ["acc", "nmi", "ari", "loss"]
