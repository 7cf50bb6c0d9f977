import math

import pytest
import torch

from shoal.methods.losses.contrastive import assignment_entropy, cluster_contrastive, contrastive


def by_hand(a, b, tau, negatives_a, negatives_b):
    """The definition, anchor by anchor."""
    e = lambda u, v: math.exp(float(torch.cosine_similarity(u, v, dim=0)) / tau)  # noqa: E731
    means = []
    for own, other, negatives in ((a, b, negatives_a), (b, a, negatives_b)):
        terms = []
        for i in range(len(a)):
            chosen = [j for j in range(len(a)) if negatives[i][j]]
            rest = sum(e(own[i], own[j]) + e(own[i], other[j]) for j in chosen)
            positive = e(own[i], other[i])
            terms.append(-math.log(positive / (rest + positive)))
        means.append(sum(terms) / len(terms))
    return sum(means) / 2


@pytest.fixture
def pairs():
    g = torch.Generator().manual_seed(0)
    return torch.randn(5, 3, generator=g), torch.randn(5, 3, generator=g)


def test_contrastive_is_its_definition(pairs):
    a, b = pairs
    every = [[i != j for j in range(5)] for i in range(5)]
    assert contrastive(a, b, 0.5).item() == pytest.approx(by_hand(a, b, 0.5, every, every), rel=1e-5)


def test_pools_differ_by_anchor_and_view(pairs):
    a, b = pairs
    g = torch.Generator().manual_seed(1)
    masks = [(torch.rand(5, 5, generator=g) < 0.4) & ~torch.eye(5, dtype=torch.bool) for _ in range(2)]
    masks[0][2] = False
    found = contrastive(a, b, 0.7, ~torch.stack(masks))
    hand = by_hand(a, b, 0.7, masks[0].tolist(), masks[1].tolist())
    assert found.item() == pytest.approx(hand, rel=1e-5)


def test_empty_pools_give_zero_with_finite_gradient(pairs):
    a, b = (t.clone().requires_grad_() for t in pairs)
    loss = contrastive(a, b, 0.5, torch.ones(2, 5, 5, dtype=torch.bool))
    loss.backward()
    assert loss.item() == 0
    assert torch.isfinite(a.grad).all()
    assert torch.isfinite(b.grad).all()


def test_scale_of_the_embedding_does_not_matter(pairs):
    a, b = pairs
    torch.testing.assert_close(contrastive(a, b, 0.5), contrastive(7 * a, 0.1 * b, 0.5))


def test_identical_embeddings_give_the_log_of_all_candidates():
    a = torch.ones(6, 4)
    assert contrastive(a, a, 0.5).item() == pytest.approx(math.log(11))


def test_entropy_limits():
    assert assignment_entropy(torch.full((8, 5), 0.2)).item() == pytest.approx(math.log(5), abs=1e-6)
    # Confident but evenly spread samples are as balanced as unsure ones.
    assert assignment_entropy(torch.eye(5)).item() == pytest.approx(math.log(5), abs=1e-6)
    collapsed = torch.zeros(8, 5)
    collapsed[:, 2] = 1
    assert assignment_entropy(collapsed).item() == pytest.approx(0, abs=1e-6)


def test_cluster_loss_punishes_collapse():
    balanced = torch.eye(4).repeat(4, 1)
    collapsed = torch.zeros(16, 4)
    collapsed[:, 0] = 1
    # Columns that are all zero have no direction; the slight rest is what a softmax leaves.
    soften = lambda y: 0.99 * y + 0.01 / 4  # noqa: E731
    low = cluster_contrastive(soften(balanced), soften(balanced), 1.0)
    high = cluster_contrastive(soften(collapsed), soften(collapsed), 1.0)
    assert low < high - 2 * math.log(4) * 0.9


def test_cluster_loss_is_contrast_of_columns_less_both_entropies():
    g = torch.Generator().manual_seed(0)
    y_a, y_b = (torch.randn(9, 3, generator=g).softmax(1) for _ in range(2))
    expected = contrastive(y_a.T, y_b.T, 1.0) - assignment_entropy(y_a) - assignment_entropy(y_b)
    torch.testing.assert_close(cluster_contrastive(y_a, y_b, 1.0), expected)
