import math

import numpy as np
import pytest

from shoal.methods.scores.clustering import accuracy, ari, cluster_balance, crossed, table_purity


@pytest.mark.parametrize(
    ("truth", "cluster", "acc", "pure"),
    [
        ([0, 0, 1, 1], [1, 1, 0, 0], 1.0, 1.0),
        ([0, 0, 1, 1], [5, 5, 5, 5], 0.5, 0.5),
        # More clusters than classes: two of the four are left without a class.
        ([3, 3, 9, 9], [0, 1, 2, 3], 0.5, 1.0),
        # Fewer clusters than classes.
        ([0, 0, 0, 1, 1, 2], [4, 4, 4, 4, 4, 4], 0.5, 0.5),
        # The best match for cluster 0 alone is class 0; the best matching of both takes the other.
        ([0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 1, 1], 4 / 7, 5 / 7),
    ],
)
def test_accuracy_and_purity_by_hand(truth, cluster, acc, pure):
    truth, cluster = np.array(truth), np.array(cluster)
    assert accuracy(truth, cluster) == pytest.approx(acc)
    assert table_purity(crossed(truth, cluster)) == pytest.approx(pure)


@pytest.mark.parametrize("score", [accuracy, ari])
def test_unequal_or_empty_arrays_are_refused(score):
    with pytest.raises(ValueError, match="equal length"):
        score(np.zeros(3, int), np.zeros(4, int))
    with pytest.raises(ValueError, match="> 0"):
        score(np.zeros(0, int), np.zeros(0, int))


def test_balance_limits():
    assert cluster_balance(np.full(4, 3)) == pytest.approx(1)
    assert cluster_balance(np.array([0, 0, 12, 0])) == 0
    assert cluster_balance(np.array([3])) == 1
    assert cluster_balance(np.array([1, 1, 0, 0])) == pytest.approx(math.log(2) / math.log(4))
