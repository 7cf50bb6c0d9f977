"""Descriptions of metrics: names that evaluations give, and what tables of runs show of them."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.cli.console import results_rows
from shoal.methods.scores.clustering import cluster_balance, cluster_scores
from shoal.methods.scores.metrics import DESCRIBED, METRICS, shown_in
from shoal.review.results.comparison import ComparedRun
from shoal.review.results.result import RunResult


def test_names_are_those_that_evaluations_give() -> None:
    given = cluster_scores(np.array([0, 0, 1]), np.array([1, 1, 0]))
    assert given.keys() <= DESCRIBED.keys()
    assert len(DESCRIBED) == len(METRICS)
    assert cluster_balance(np.array([2, 2])) == 1
    assert DESCRIBED["balance"].better == "neither"


@pytest.mark.parametrize(
    ("metrics", "shown"),
    [
        ({"ari": 0.1, "acc": 0.5, "odd": 1.0}, ["ACC", "ARI"]),
        ({"odd": 1.0}, ["neighbour agreement", "silhouette"]),
        ({"perplexity": 40.0}, ["perplexity"]),
    ],
)
def test_runs_without_labels_are_compared_by_what_needs_none(metrics: dict[str, float], shown: list[str]) -> None:
    quality = {"neighbour_agreement": 0.6, "silhouette": 0.2, "stability": 0.9}
    result = RunResult("r", "finished", 1, metrics, quality, {"up": 1, "down": 1, "d2d": 0}, 1.0, None, None)
    run = ComparedRun("fedcc", "digits", result)
    headers = list(results_rows([run])[0])
    assert headers[5:-4] == shown


def test_a_run_without_labels_has_a_score_beside_one_with_labels() -> None:
    def run(metrics: dict[str, float]) -> ComparedRun:
        quality = {"neighbour_agreement": 0.6}
        result = RunResult("r", "finished", 1, metrics, quality, {"up": 1, "down": 1, "d2d": 0}, 1.0, None, None)
        return ComparedRun("fedcc", "digits", result)

    first, second = results_rows([run({"acc": 0.5}), run({})])
    assert (first["ACC"], second["ACC"]) == (0.5, None)
    assert second["neighbour agreement"] == 0.6
    assert "neighbour agreement" not in results_rows([run({"acc": 0.5}), run({"acc": 0.4})])[0]


def test_what_is_seen_while_a_run_goes_on() -> None:
    assert [metric.name for metric in shown_in("progress")] == ["acc", "nmi", "ari", "loss"]
