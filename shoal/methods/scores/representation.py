"""Scores of a representation beyond its clusters: kNN, alignment, uniformity, effective rank.

Shapes: n training and m test samples, d features. The linear probe is in `shoal.methods.scores.probe`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.methods.scores.probe import check_features

CHUNK = 512
"""Rows compared with all others at once; memory holds CHUNK x n similarities."""


def knn_accuracy(
    train_h: Tensor, train_y: Tensor, test_h: Tensor, test_y: Tensor, *, k: int = 200, temperature: float = 0.1
) -> float:
    """Return the accuracy of a vote of the k nearest training samples by cosine, each weighted exp(cos / temperature).

    This is the monitor of Wu et al. 2018 (Instance Discrimination), section 3.4.

    Args:
        train_h: (n, d) features.
        train_y: (n,) labels, any integers.
        test_h: (m, d).
        test_y: (m,).
        k: neighbours; at most n.
        temperature: of the weights.

    Raises:
        ValueError: no training or no test samples.
    """
    check_features(train_h, test_h)
    classes, train_y = train_y.unique(return_inverse=True)
    train_h = _unit(train_h)
    test_h = _unit(test_h)
    k = min(k, len(train_h))
    right = 0
    for h, y in zip(test_h.split(CHUNK), test_y.split(CHUNK), strict=True):
        similarity, neighbour = (h @ train_h.T).topk(k, dim=1)
        # Relative to the nearest, so that a small temperature cannot overflow.
        weight = ((similarity - similarity[:, :1]) / temperature).exp()
        votes = weight.new_zeros(len(h), len(classes)).scatter_add_(1, train_y[neighbour], weight)
        right += int((classes[votes.argmax(1)] == y).sum())
    return right / len(test_h)


def alignment(h_a: Tensor, h_b: Tensor) -> float:
    """Return the mean squared distance of the unit features (n, d) of two views: 0 where views agree, at most 4.

    Wang and Isola 2020, eq. 1 with alpha = 2.
    """
    return float((_unit(h_a) - _unit(h_b)).pow(2).sum(1).double().mean())


def uniformity(h: Tensor) -> float:
    """Return -log of the mean over pairs of distinct samples of exp(-2 |h_i - h_j|^2), for unit features (n, d).

    Wang and Isola 2020, eq. 2 with t = 2 and the opposite sign, so that higher is more uniform: 0 where all features
    are one point, about 3.984 for many points spread evenly over the sphere in 512 dimensions.

    Raises:
        ValueError: fewer than two samples.
    """
    n = len(h)
    if n < 2:
        raise ValueError("uniformity needs at least two samples")
    h = _unit(h)
    total = 0.0
    for start in range(0, n, CHUNK):
        rows = h[start : start + CHUNK]
        kernel = (4 * (rows @ h.T).clamp_(-1, 1) - 4).exp_()
        kernel[torch.arange(len(rows)), start + torch.arange(len(rows))] = 0
        total += float(kernel.double().sum())
    return -float(torch.tensor(total / (n * (n - 1)), dtype=torch.float64).log()) + 0.0


def split_uniformity(h: Tensor, owner: Tensor) -> tuple[float, float]:
    """Return uniformity over pairs of different clients, and over pairs of the same client (SSD's decomposition).

    Args:
        h: features (n, d), normalised here.
        owner: the client of each row, int64 (n,).

    Returns:
        (inter, intra): -log of the mean of exp(-2 |h_i - h_j|^2) over such pairs; 0 where there is none.
    """
    h = _unit(h)
    kernel = (4 * (h @ h.T).clamp_(-1, 1) - 4).exp_().double()
    same = owner[:, None] == owner[None, :]
    inside = same & ~torch.eye(len(h), dtype=torch.bool, device=h.device)
    values = []
    for pairs in (~same, inside):
        values.append(-float(kernel[pairs].mean().log()) + 0.0 if bool(pairs.any()) else 0.0)
    return values[0], values[1]


def effective_rank(h: Tensor) -> float:
    """Return exp of the entropy of the singular values of h (n, d), scaled to sum to 1 (Roy and Vetterli 2007).

    It lies between 1 (all features on one line) and min(n, d); 0 for features that are all zero.
    """
    h = h.detach().double()
    if h.device.type == "cpu" or len(h) < h.shape[1]:
        values = torch.linalg.svdvals(h)
    else:  # faster on a GPU for a tall matrix
        values = torch.linalg.eigvalsh(h.T @ h).clamp(min=0).sqrt()
    total = values.sum()
    if not total > 0:
        return 0.0
    share = values / total
    return float(torch.special.entr(share).sum().exp())


def _unit(h: Tensor) -> Tensor:
    return F.normalize(h.detach().float(), dim=1)
