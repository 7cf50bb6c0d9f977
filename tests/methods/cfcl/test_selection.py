"""Macro and micro importance against cases worked out by hand; drawing against its own frequencies."""

import math

import numpy as np
import pytest
import torch

from shoal.methods.cfcl.selection import (
    draw,
    importance,
    macro_probability,
    micro_probability,
    negative_losses,
    one_start_kmeans,
    plus_plus,
    reserve,
    triplet_loss,
)


def rng(seed=0):
    return np.random.default_rng(seed)


def test_triplets_by_hand():
    a, p, n = torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    assert float(triplet_loss(a, p, n)) == 0
    assert float(triplet_loss(a, p, n / 2)) == pytest.approx(1)
    assert float(triplet_loss(a, a, a)) == 1


def test_macro_by_fractions_of_each_set():
    """Clusters with 2, 1 and 0 of 3 candidates, and with 2, 0 and 3 of 5 reserve samples."""
    tx, res = torch.tensor([0, 0, 1]), torch.tensor([0, 0, 2, 2, 2])
    first = (2 / 3) / (2 / 3 + 2 / 5)
    expected = [first / (first + 1), 1 / (first + 1), 0]
    assert macro_probability(tx, res, 3).tolist() == pytest.approx(expected)
    # Ten times as many candidates change nothing: what counts say depends on the sizes of both sets.
    assert macro_probability(tx.repeat(10), res, 3).tolist() == pytest.approx(expected)
    # A cluster that holds nothing of either has no probability, and is no division by zero.
    assert macro_probability(tx, res, 4).tolist() == pytest.approx([*expected, 0])
    nobody = torch.zeros(0, dtype=torch.int64)
    assert macro_probability(torch.tensor([0, 1, 1]), nobody, 2).tolist() == [0.5, 0.5]


def test_micro_by_hand():
    cluster = torch.tensor([0, 0, 1])
    p = micro_probability(torch.tensor([1.0, 2.0, 9.0]), cluster, 2, 1.0)
    assert p.tolist() == pytest.approx([1 / (1 + math.e), math.e / (1 + math.e), 1])
    assert micro_probability(torch.tensor([3.0, 3.0, 3.0]), cluster, 2, 7.0).tolist() == [0.5, 0.5, 1]
    # No overflow where the loss is large and lambda hot.
    hot = micro_probability(torch.tensor([900.0, 1000.0, 0.0]), cluster, 2, 50.0)
    assert hot.tolist() == [0, 1, 1]


def test_losses_of_negatives_by_hand():
    anchors, positives = torch.tensor([[0.0, 0.0], [1.0, 0.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    candidates = torch.tensor([[0.0, 0.0], [3.0, 0.0]])
    # |a - p|^2 = 1, 0; |a - c|^2 = 0, 1 and 9, 4; margin 1: (1 - 0 + 1 + 0 - 1 + 1) / 2 and (0 + 0) / 2.
    assert negative_losses(candidates, anchors, positives).tolist() == pytest.approx([1.0, 0.0])


def test_importance_prefers_what_the_receiver_lacks():
    generator = torch.Generator().manual_seed(0)
    here, there = torch.randn(30, 2, generator=generator) * 0.1, torch.randn(30, 2, generator=generator) * 0.1 + 5
    candidates = torch.cat((here, there))
    anchors = torch.randn(20, 2, generator=generator) * 0.1
    p = importance(candidates, anchors, anchors, clusters=2, heat=0.0, macro=macro_probability, rng=rng())
    assert float(p.sum()) == pytest.approx(1)
    # Half of the candidates beside the whole reserve, and half beside nothing: 1/3 and 1.
    assert float(p[30:].sum()) == pytest.approx(3 / 4)
    blind = importance(candidates, anchors[:0], anchors[:0], clusters=2, heat=1.0, macro=macro_probability, rng=rng())
    assert blind.tolist() == pytest.approx([1 / 60] * 60)


def test_importance_within_a_cluster_follows_the_loss_as_a_negative():
    """One cluster: probabilities are exp(heat * loss), normalised; the candidate nearest the anchors has most."""
    candidates = torch.tensor([[0.0, 0.0], [0.5, 0.0], [1.0, 0.0]])
    anchors = torch.zeros(2, 2)
    p = importance(candidates, anchors, anchors, clusters=1, heat=2.0, macro=macro_probability, rng=rng())
    weights = [math.exp(2 * loss) for loss in (1.0, 0.75, 0.0)]  # max(0, 0 - distance squared + 1)
    assert p.tolist() == pytest.approx([w / sum(weights) for w in weights])


def test_drawing_follows_its_probabilities():
    p = torch.tensor([0.5, 0.3, 0.2, 0.0], dtype=torch.float64)
    source = rng(1)
    counts = np.zeros(4)
    for _ in range(4000):
        counts[draw(p, 1, source)] += 1
    assert counts / 4000 == pytest.approx([0.5, 0.3, 0.2, 0], abs=0.03)
    # Two without replacement: 0 is missed with probability 0.3 * 0.2 / 0.7 + 0.2 * 0.3 / 0.8.
    missed = np.mean([0 not in draw(p, 2, source).tolist() for _ in range(4000)])
    assert missed == pytest.approx(0.3 * 0.2 / 0.7 + 0.2 * 0.3 / 0.8, abs=0.03)
    assert draw(p, 9, source).tolist() == [0, 1, 2], "what has no probability is never drawn"


def test_reserves_cover_planted_clusters():
    generator = torch.Generator().manual_seed(0)
    x = torch.cat([torch.randn(40, 3, generator=generator) * 0.05 + 10 * k for k in range(5)])
    chosen = reserve(x, 5, rng())
    assert sorted((chosen // 40).tolist()) == [0, 1, 2, 3, 4]
    assert reserve(x[:3], 20, rng()).tolist() == [0, 1, 2]
    same = reserve(torch.zeros(50, 2), 8, rng())
    assert len(same.unique()) == len(same) == 8, "duplicates still give different samples"


def test_plus_plus_takes_different_rows_and_kmeans_finds_blobs():
    x = torch.cat((torch.zeros(10, 2), torch.ones(10, 2)))
    assert sorted((plus_plus(x, 2, rng()) // 10).tolist()) == [0, 1]
    cluster, centres = one_start_kmeans(x, 2, rng())
    assert len(cluster[:10].unique()) == 1
    assert int(cluster[0]) != int(cluster[10])
    assert sorted(centres[:, 0].tolist()) == [0, 1]
