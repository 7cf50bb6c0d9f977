"""Algorithm 1 against brute force; hand-made matrices; time enough for a thousand clients."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.methods.cfl.bipartition import bipartition, cosine_matrix, ready_to_split, separation_gap


def brute_force(alpha):
    m = len(alpha)
    best = np.inf
    for size in range(1, m):
        for rest in combinations(range(1, m), size):
            first = [i for i in range(m) if i not in rest]
            best = min(best, alpha[np.ix_(first, list(rest))].max())
    return best


def symmetric(values):
    return np.maximum(values, values.T)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 10), st.integers(0, 2**32 - 1), st.booleans())
def test_it_is_the_optimum(m, seed, ties):
    rng = np.random.default_rng(seed)
    values = rng.integers(-2, 3, (m, m)) / 2 if ties else rng.uniform(-1, 1, (m, m))
    alpha = symmetric(values.astype(float))
    groups = bipartition(alpha)
    assert sorted(groups.first + groups.second) == list(range(m))
    assert groups.first
    assert groups.second
    across = alpha[np.ix_(groups.first, groups.second)].max()
    assert across == groups.cross == brute_force(alpha)


def test_the_order_of_clients_changes_names_only():
    rng = np.random.default_rng(3)
    alpha = symmetric(rng.uniform(-1, 1, (9, 9)))
    order = rng.permutation(9)
    groups = bipartition(alpha)
    shuffled = bipartition(alpha[np.ix_(order, order)])
    as_sets = {frozenset(order[list(g)].tolist()) for g in (shuffled.first, shuffled.second)}
    assert as_sets == {frozenset(groups.first), frozenset(groups.second)}
    assert shuffled.cross == groups.cross


def test_a_chain_is_not_cut_as_complete_linkage_would():
    """0-1-2-3 are similar in a chain, 4 is apart: single linkage keeps the chain, although 0 and 3 are unlike."""
    alpha = np.full((5, 5), -0.5)
    for i in range(3):
        alpha[i, i + 1] = alpha[i + 1, i] = 0.9
    alpha[3, 4] = alpha[4, 3] = 0.1
    groups = bipartition(alpha)
    assert groups == ((0, 1, 2, 3), (4,), 0.1)


def test_planted_groups_of_a_thousand_clients():
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((2, 50))
    truth = rng.integers(0, 2, 1000)
    alpha = cosine_matrix(torch.from_numpy(centres[truth] + 0.3 * rng.standard_normal((1000, 50))))
    groups = bipartition(alpha)
    assert len(set(truth[list(groups.first)].tolist())) == 1
    assert len(groups.first) in ((truth == 0).sum(), (truth == 1).sum())
    assert separation_gap(alpha, truth) > 0


def test_gap_by_hand():
    alpha = np.array([[1, 0.8, -0.2], [0.8, 1, -0.4], [-0.2, -0.4, 1]])
    assert separation_gap(alpha, np.array([0, 0, 1])) == pytest.approx(0.8 + 0.2)
    assert separation_gap(alpha, np.array([0, 1, 1])) == pytest.approx(-0.4 + 0.2)
    assert bipartition(alpha)[:2] == ((0, 1), (2,))


def test_cosines_by_hand():
    alpha = cosine_matrix(torch.tensor([[1.0, 0], [1, 1], [-2, 0], [0, 0]]))
    half = 0.5**0.5
    expected = [[1, half, -1, 0], [half, 1, -half, 0], [-1, -half, 1, 0], [0, 0, 0, 1]]
    np.testing.assert_allclose(alpha, expected, atol=1e-12)


def test_two_zero_updates_have_no_similarity():
    alpha = cosine_matrix(torch.tensor([[0.0, 0], [0, 0], [1, 0]]))
    np.testing.assert_array_equal(alpha, np.eye(3))
    assert bipartition(alpha).cross == 0


def test_a_bipartition_may_be_correct_without_a_positive_gap():
    """Remark 2 says "if and only if"; only "if" holds. Two clients of group 0 are less alike than the cut allows."""
    alpha = np.array([[1, 0.5, -0.2, 0], [0.5, 1, 0.5, 0], [-0.2, 0.5, 1, 0], [0, 0, 0, 1]])
    truth = np.array([0, 0, 0, 1])
    assert bipartition(alpha)[:2] == ((0, 1, 2), (3,))
    assert separation_gap(alpha, truth) < 0


def test_splitting_needs_a_low_enough_similarity():
    # sqrt((1 - cross) / 2) at cross = 0.5 is 0.5.
    assert ready_to_split(0.5, 0.49)
    assert not ready_to_split(0.5, 0.5)
    assert ready_to_split(-1.0, 0.99)


@pytest.mark.parametrize("alpha", [np.ones((1, 1)), np.ones((2, 3)), np.array([[1, np.nan], [np.nan, 1]])])
def test_what_cannot_be_cut_is_refused(alpha):
    with pytest.raises(ValueError, match="bipartition needs"):
        bipartition(alpha)
