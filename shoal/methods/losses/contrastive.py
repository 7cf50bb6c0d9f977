"""Contrastive losses over instances and over clusters, as pure functions.

Shapes: n samples, p projection dimensions, c clusters; views a and b of one sample are rows i of two matrices.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.methods.losses.fused_contrast import fused_contrast, negative_entropies
from shoal.methods.losses.unit_rows import unit_rows

EPSILON = 1e-8
"""Added to shares before their logarithm."""


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
        left_out = None if negatives is None else ~torch.stack(negatives)
        return fused_contrast(unit_rows(torch.cat((a, b))), tau, left_out)
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


def view_contrast(
    z: Tensor, tau: float, left_out: Tensor | None = None, *, is_unit: bool = False, decoupled: bool = False
) -> Tensor:
    """Return `contrastive` of views that lie in one tensor, which takes fewer launches on a device.

    Args:
        z: (2n, p), views a, then views b.
        tau: temperature.
        left_out: boolean (2, n, n): row i of each view marks the samples that are no negatives of anchor i, itself
            among them. None: no other is left out.
        is_unit: rows of z are unit vectors.
        decoupled: see `contrastive`.
    """
    if z.device.type != "cpu" and not decoupled:
        return fused_contrast(z if is_unit else unit_rows(z), tau, left_out)
    a, b = z.chunk(2)
    pools = None
    if left_out is not None:
        of_a, of_b = ~left_out
        pools = (of_a, of_b)
    return contrastive(a, b, tau, pools, decoupled=decoupled)


def _one_way(within: Tensor, across: Tensor, negatives: Tensor, decoupled: bool) -> Tensor:
    positive = across.diagonal()
    lowest = torch.finfo(within.dtype).min
    logits = torch.cat((within.masked_fill(~negatives, lowest), across.masked_fill(~negatives, lowest)), 1)
    if not decoupled:
        return (torch.cat((positive[:, None], logits), 1).logsumexp(1) - positive).mean()
    counted = negatives.any(1)
    losses = torch.where(counted, logits.logsumexp(1) - positive, torch.zeros_like(positive))
    return losses.sum() / counted.sum().clamp(min=1)


def assignment_entropy(y: Tensor, eps: float = EPSILON) -> Tensor:
    """Return the entropy (nats) of the mean assignment of y (n, c): log c for equally full clusters, 0 for one."""
    return entropy(y.mean(0), eps)


def entropy(p: Tensor, eps: float = EPSILON) -> Tensor:
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
    two_views_only = others is None or part is None
    if two_views_only and y_a.device.type != "cpu" and not decoupled:
        rows = torch.stack((y_a, y_b))
        columns = unit_rows(rows.transpose(1, 2).flatten(0, 1))
        return fused_contrast(columns, tau) + negative_entropies(rows, EPSILON)
    contrast = contrastive(y_a.T, y_b.T, tau, decoupled=decoupled)
    if others is None or part is None:
        return contrast - assignment_entropy(y_a) - assignment_entropy(y_b)
    return contrast - entropy_among_others(y_a, others, part) - entropy_among_others(y_b, others, part)
