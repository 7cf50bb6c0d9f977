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


def contrastive(a: Tensor, b: Tensor, tau: float, left_out: Tensor | None = None) -> Tensor:
    """Return NT-Xent (Chen et al. 2020) over n pairs, each anchor with its own set of negatives.

    For anchor a_i: -log( e(a_i, b_i) / (e(a_i, b_i) + sum over j in N_i of e(a_i, a_j) + e(a_i, b_j)) ), where
    e = exp(cos / tau); likewise for b_i; the mean over both directions. FedPNP eq. 5, with the positive kept in the
    denominator, so that an anchor without negatives gives 0 and not infinity.

    Args:
        a: (n, p), view a; normalised here.
        b: (n, p), view b.
        tau: temperature.
        left_out: boolean (2, n, n): row i of each view marks the samples that are not in N_i, itself among them. None:
            no other is left out.
    """
    if a.device.type != "cpu":
        return fused_contrast(unit_rows(torch.cat((a, b))), tau, left_out)
    a = F.normalize(a, dim=1)
    b = F.normalize(b, dim=1)
    across = a @ b.T / tau
    if left_out is None:
        left_out = same(a).expand(2, -1, -1)
    terms = [_one_way(a @ a.T / tau, across, left_out[0]), _one_way(b @ b.T / tau, across.T, left_out[1])]
    return (terms[0] + terms[1]) / 2


def same(rows: Tensor) -> Tensor:
    """Return the mask (n, n) of pairs of a row and itself."""
    return torch.eye(len(rows), dtype=torch.bool, device=rows.device)


def left_out_share(left_out: Tensor) -> Tensor:
    """Return the share of all pairs of distinct samples that the pools of both views leave out.

    Args:
        left_out: masks (2, n, n) of the pairs that are left out, those of a sample with itself among them.
    """
    count = left_out.shape[1]
    return (left_out.sum() - 2 * count) / (2 * count * (count - 1))


def view_contrast(z: Tensor, tau: float, left_out: Tensor | None = None, *, is_unit: bool = False) -> Tensor:
    """Return `contrastive` of views that lie in one tensor, which takes fewer launches on a device.

    Args:
        z: (2n, p), views a, then views b.
        tau: temperature.
        left_out: see `contrastive`.
        is_unit: rows of z are unit vectors.
    """
    if z.device.type != "cpu":
        return fused_contrast(z if is_unit else unit_rows(z), tau, left_out)
    a, b = z.chunk(2)
    return contrastive(a, b, tau, left_out)


def _one_way(within: Tensor, across: Tensor, left_out: Tensor) -> Tensor:
    positive = across.diagonal()
    lowest = torch.finfo(within.dtype).min
    logits = torch.cat((within.masked_fill(left_out, lowest), across.masked_fill(left_out, lowest)), 1)
    return (torch.cat((positive[:, None], logits), 1).logsumexp(1) - positive).mean()


def assignment_entropy(y: Tensor) -> Tensor:
    """Return the entropy (nats) of the mean assignment of y (n, c): log c for equally full clusters, 0 for one."""
    return entropy(y.mean(0))


def entropy(p: Tensor) -> Tensor:
    """Return the entropy (nats) of shares p (c,) that sum to 1."""
    return -(p * (p + EPSILON).log()).sum()


def cluster_contrastive(y_a: Tensor, y_b: Tensor, tau: float) -> Tensor:
    """Return the contrast between the c columns of soft assignments, minus the entropies of both mean assignments.

    FedPNP eq. 7 with the entropy's sign of contrastive clustering (Li et al. 2021, eq. 6): minimising +H would put
    every sample into one cluster.

    Args:
        y_a: (n, c) soft assignments of views a; rows sum to 1.
        y_b: (n, c), of views b.
        tau: temperature of the contrast between columns.
    """
    if y_a.device.type != "cpu":
        rows = torch.stack((y_a, y_b))
        columns = unit_rows(rows.transpose(1, 2).flatten(0, 1))
        return fused_contrast(columns, tau) + negative_entropies(rows, EPSILON)
    return contrastive(y_a.T, y_b.T, tau) - assignment_entropy(y_a) - assignment_entropy(y_b)
