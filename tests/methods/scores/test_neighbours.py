"""A ruler for the clusterings of two models: better ones have more of it, and none can fool it by collapse."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.data.sets.prepared import PreparedSet
from shoal.methods.scores.clustering import accuracy
from shoal.methods.scores.neighbours import nearest_samples, neighbour_information, reference_features, unlike


def test_clusterings_of_digits_are_ranked_as_their_accuracy_ranks_them(digits: PreparedSet) -> None:
    assert digits.test_x is not None
    assert digits.test_y is not None
    x, y = np.asarray(digits.test_x), np.asarray(digits.test_y)
    neighbours, rng = nearest_samples(reference_features(x)), np.random.default_rng(0)
    found = []
    for share in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):  # of samples that are put into clusters at random
        cluster = np.where(rng.random(len(y)) < share, rng.integers(0, 10, len(y)), y)
        found.append((accuracy(y, cluster), neighbour_information(cluster, neighbours, 10)))
    assert found == sorted(found, reverse=True)
    assert found[0][1] > 0.8
    assert abs(found[-1][1]) < 0.05


def test_collapse_and_fewer_clusters_do_not_pay(digits: PreparedSet) -> None:
    assert digits.test_x is not None
    assert digits.test_y is not None
    x, y = np.asarray(digits.test_x), np.asarray(digits.test_y)
    neighbours = nearest_samples(reference_features(x))

    def score(cluster: np.ndarray) -> float:
        return neighbour_information(cluster, neighbours, 10)

    assert score(np.zeros_like(y)) == 0.0
    assert score(y) > score(y // 2) > score(y // 5) > 0.2
    assert score((y + 3) % 10) == pytest.approx(score(y))  # which number a cluster has does not matter


def test_rows_choose_the_pairs_that_count() -> None:
    pairs = np.array([[1], [0], [3], [2]])
    cluster = np.array([0, 0, 0, 1])
    assert neighbour_information(cluster, pairs, 2, np.arange(4)) == neighbour_information(cluster, pairs, 2)
    # The rows 0 and 3 give the pairs (0, 0) and (1, 0): P(0, 0) is 1/2 and P(0) is 3/4, P(1, 1) is 0.
    expected = 0.5 * np.log(0.5 / 0.75**2) / np.log(2)
    assert neighbour_information(cluster, pairs, 2, np.array([0, 3])) == pytest.approx(expected)
    assert neighbour_information(cluster, pairs, 2, np.array([0, 0, 3, 3])) == pytest.approx(expected)


def test_neighbours_are_the_nearest_others() -> None:
    x = np.array([[0.0, 0], [1, 0], [1.5, 0], [9, 0]], dtype=np.float32)
    assert nearest_samples(x, 2).tolist() == [[1, 2], [2, 0], [1, 0], [2, 1]]
    assert nearest_samples(x, 99).shape == (4, 3)
    standardised = reference_features(x)
    assert np.allclose(standardised.mean(0), 0, atol=1e-6)
    assert standardised[:, 1].tolist() == [0, 0, 0, 0]
    with pytest.raises(ValueError, match="neither images nor vectors"):
        reference_features(np.zeros((3, 7), dtype=np.int32))


def test_what_is_unlike_all_before_is_told(digits: PreparedSet) -> None:
    assert digits.test_x is not None
    noise = np.random.default_rng(0).integers(0, 255, (50, 1, 8, 8), dtype=np.uint8)
    assert unlike(np.asarray(digits.train_x), noise).all()
    assert unlike(np.asarray(digits.train_x), np.asarray(digits.test_x)).mean() < 0.05
