"""Contrastive losses over instances and over clusters, as pure functions.

Shapes: n samples, p projection dimensions, c clusters; views a and b of one sample are rows i of two matrices.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def contrastive(
    a: Tensor, b: Tensor, tau: float, negatives: tuple[Tensor, Tensor] | None = None, *, decoupled: bool = False
) -> Tensor:
    """Return NT-Xent (Chen et al. 2020) over n pairs, each anchor with its own set of negatives.

    For anchor a_i: -log( e(a_i, b_i) / (e(a_i, b_i) + sum over j in N_i of e(a_i, a_j) + e(a_i, b_j)) ), where
    e = exp(cos / tau); likewise for b_i; the mean over both directions. FedPNP eq. 5, with the positive kept in the
    denominator, so that an anchor without negatives gives 0 and not infinity.

    Args:
        a: (n, p), view a; normalised here.
        b: (n, p), view b.
        tau: temperature.
        negatives: boolean (n, n) masks for anchors of a and of b: row i marks the j in N_i. None: all j != i.
        decoupled: leave the positive out of the denominator, as FedPNP prints it; anchors without negatives are
            then left out of the mean.

    Returns:
        A scalar; 0 where no anchor counts.
    """
    if a.device.type != "cpu" and not decoupled:
        return _both_ways(a, b, tau, negatives)
    a = F.normalize(a, dim=1)
    b = F.normalize(b, dim=1)
    across = a @ b.T / tau
    if negatives is None:
        others = ~torch.eye(len(a), dtype=torch.bool, device=a.device)
        negatives = (others, others)
    terms = [
        _one_way(a @ a.T / tau, across, negatives[0], decoupled),
        _one_way(b @ b.T / tau, across.T, negatives[1], decoupled),
    ]
    return (terms[0] + terms[1]) / 2


def _both_ways(a: Tensor, b: Tensor, tau: float, negatives: tuple[Tensor, Tensor] | None) -> Tensor:
    """Return NT-Xent as a classification of 2n anchors, each by its positive: a third of the launches."""
    z = F.normalize(torch.cat((a, b)), dim=1)
    count = len(a)
    logits = z @ z.T / tau
    lowest = torch.finfo(logits.dtype).min
    if negatives is None:
        itself = torch.eye(2 * count, dtype=torch.bool, device=a.device)
        pairs = torch.arange(2 * count, device=a.device).roll(count)
        return F.cross_entropy(logits.masked_fill(itself, lowest), pairs)
    positive = torch.cat((logits.diagonal(count), logits.diagonal(-count)))
    others = ~torch.cat(negatives)
    masked = logits.view(2 * count, 2, count).masked_fill(others[:, None], lowest).flatten(1)
    # The positive's own place is masked: no sample is its own negative.
    first = torch.zeros(2 * count, dtype=torch.int64, device=a.device)
    return F.cross_entropy(torch.cat((positive[:, None], masked), 1), first)


def _one_way(within: Tensor, across: Tensor, negatives: Tensor, decoupled: bool) -> Tensor:
    positive = across.diagonal()
    lowest = torch.finfo(within.dtype).min
    logits = torch.cat((within.masked_fill(~negatives, lowest), across.masked_fill(~negatives, lowest)), 1)
    if not decoupled:
        return (torch.cat((positive[:, None], logits), 1).logsumexp(1) - positive).mean()
    counted = negatives.any(1)
    losses = torch.where(counted, logits.logsumexp(1) - positive, torch.zeros_like(positive))
    return losses.sum() / counted.sum().clamp(min=1)


def assignment_entropy(y: Tensor, eps: float = 1e-8) -> Tensor:
    """Return the entropy (nats) of the mean assignment of y (n, c): log c for equally full clusters, 0 for one."""
    return entropy(y.mean(0), eps)


def entropy(p: Tensor, eps: float = 1e-8) -> Tensor:
    """Return the entropy (nats) of shares p (c,) that sum to 1."""
    return -(p * (p + eps).log()).sum()


def entropy_among_others(y: Tensor, others: Tensor, part: Tensor) -> Tensor:
    """Return the entropy (nats) of the mean assignment of y (n, c) and others' shares (c,) together, over `part`.

    y is the part (0, 1] of the whole, the others are the rest. The division by the part makes the gradient on y as
    strong as that of its own entropy: at part 1 it is `assignment_entropy`. The value grows with 1 / part, the gradient
    does not.
    """
    return entropy(part * y.mean(0) + (1 - part) * others) / part


def cluster_contrastive(
    y_a: Tensor,
    y_b: Tensor,
    tau: float,
    *,
    decoupled: bool = False,
    others: Tensor | None = None,
    part: Tensor | None = None,
) -> Tensor:
    """Return the contrast between the c columns of soft assignments, minus the entropies of both mean assignments.

    FedPNP eq. 7 with the entropy's sign of contrastive clustering (Li et al. 2021, eq. 6): minimising +H would put
    every sample into one cluster.

    Args:
        y_a: (n, c) soft assignments of views a; rows sum to 1.
        y_b: (n, c), of views b.
        tau: temperature of the contrast between columns.
        decoupled: leave the positive out of the denominator, as FedPNP's eq. 4 prints it.
        others, part: arguments of `entropy_among_others`; None: the entropies are those of y_a and y_b alone.
    """
    contrast = contrastive(y_a.T, y_b.T, tau, decoupled=decoupled)
    if others is None or part is None:
        return contrast - assignment_entropy(y_a) - assignment_entropy(y_b)
    return contrast - entropy_among_others(y_a, others, part) - entropy_among_others(y_b, others, part)
