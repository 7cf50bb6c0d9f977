import math

import pytest
import torch

from shoal.methods.scores.representation import alignment, effective_rank, knn_accuracy, uniformity


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def blobs(n, labels=(11, -2, 5), seed=0):
    y = torch.tensor(labels)[torch.arange(n) % len(labels)]
    corners = 4 * torch.eye(8)
    return corners[torch.arange(n) % len(labels)] + 0.3 * normal(n, 8, seed=seed), y


def test_separate_classes_are_found():
    (train_h, train_y), (test_h, test_y) = blobs(90), blobs(31, seed=1)
    assert knn_accuracy(train_h, train_y, test_h, test_y) == 1


def test_noise_is_not_found():
    y = torch.arange(400) % 4
    train_h, test_h = normal(400, 16), normal(400, 16, seed=1)
    assert 0.15 < knn_accuracy(train_h, y, test_h, y) < 0.35


def test_neighbours_vote_with_their_weight():
    # One neighbour at cos 1 outweighs two at cos 0: e^10 against 2.
    train_h = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    train_y = torch.tensor([7, 3, 3])
    assert knn_accuracy(train_h, train_y, torch.tensor([[2.0, 0.0]]), torch.tensor([7])) == 1
    assert knn_accuracy(train_h, train_y, torch.tensor([[2.0, 0.0]]), torch.tensor([7]), temperature=10.0) == 0
    assert knn_accuracy(train_h, train_y, torch.tensor([[2.0, 0.0]]), torch.tensor([7]), temperature=1e-4, k=1) == 1


def test_unseen_test_labels_count_as_wrong():
    (train_h, train_y), (test_h, test_y) = blobs(30), blobs(30, (11, -2, 99), seed=1)
    assert knn_accuracy(train_h, train_y, test_h, test_y) == pytest.approx(2 / 3)


def test_empty_sides_are_refused():
    h, y = blobs(6)
    for train, test in ((h[:0], h), (h, h[:0])):
        with pytest.raises(ValueError, match="at least one"):
            knn_accuracy(train, y[: len(train)], test, y[: len(test)])


def test_alignment_limits():
    h = normal(50, 8)
    assert alignment(h, 3 * h) == pytest.approx(0, abs=1e-6)
    assert alignment(h, -h) == pytest.approx(4, abs=1e-5)


def test_uniformity_limits():
    assert uniformity(torch.ones(600, 16)) == pytest.approx(0, abs=1e-5)
    # Evenly on the sphere in 512 dimensions: the ceiling that SSD reports.
    assert uniformity(normal(2000, 512)) == pytest.approx(3.984, abs=0.002)
    with pytest.raises(ValueError, match="two samples"):
        uniformity(normal(1, 4))


def test_uniformity_counts_distinct_pairs_over_chunks():
    h = normal(700, 5)
    unit = h / h.norm(dim=1, keepdim=True)
    exact = -torch.nn.functional.pdist(unit.double()).pow(2).mul(-2).exp().mean().log()
    assert uniformity(h) == pytest.approx(exact.item(), abs=1e-5)


def test_effective_rank_limits():
    assert effective_rank(torch.eye(6)) == pytest.approx(6)
    assert effective_rank(torch.ones(9, 4)) == pytest.approx(1)
    assert effective_rank(torch.zeros(9, 4)) == 0
    # Singular values 3 and 1.
    h = torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    assert effective_rank(h) == pytest.approx(math.exp(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25))))
