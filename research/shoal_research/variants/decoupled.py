"""FedPNP as its paper prints the contrasts (eq. 4, 5): the positive pair is not in the denominators."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.methods.contract.message import Tensors
from shoal.methods.fedpnp.fedpnp import FedPNP
from shoal.methods.fedpnp.pool import past_negatives
from shoal.methods.losses.contrastive import assignment_entropy, distinct
from shoal.methods.training.model_stack import Batch, StepResult


class DecoupledFedPNP(FedPNP):
    """FedPNP with decoupled contrasts of instances and of clusters."""

    name = "fedpnp_decoupled"
    title = "FedPNP with decoupled contrasts"
    about = "FedPNP as printed, without the positive pair in the denominators."

    def instance_loss(self, z: Tensor, labels: Tensor, batch: Batch) -> StepResult:
        """Return the decoupled contrast of both views' projections (2n, p), and numbers on the pools."""
        z_a, z_b = z.chunk(2)
        past_a, past_b = labels.chunk(2)
        pools = past_negatives(past_a, past_b, self.settings.mu)
        loss = decoupled_contrastive(z_a, z_b, self.tau_instance, pools)
        return loss, self.pool_metrics(~torch.stack(pools), batch)

    def cluster_loss(self, y_a: Tensor, y_b: Tensor, tau: float, extra: Tensors) -> StepResult:
        """Return the decoupled contrast of the columns of soft assignments (n, c), minus their entropies."""
        others = distinct(y_a.T)
        contrast = decoupled_contrastive(y_a.T, y_b.T, tau, (others, others))
        return contrast - assignment_entropy(y_a) - assignment_entropy(y_b), {}


def decoupled_contrastive(a: Tensor, b: Tensor, tau: float, negatives: tuple[Tensor, Tensor]) -> Tensor:
    """Return `shoal.methods.losses.contrastive.contrastive` without the positive in the denominator.

    Args:
        a: (n, p), view a; normalised here.
        b: (n, p), view b.
        tau: temperature.
        negatives: boolean (n, n) masks for anchors of a and of b: row i marks the negatives of anchor i.

    Returns:
        A scalar, the mean over anchors with negatives in each direction; 0 where there is none.
    """
    a = F.normalize(a, dim=1)
    b = F.normalize(b, dim=1)
    across = a @ b.T / tau
    one = _one_way(a @ a.T / tau, across, negatives[0])
    other = _one_way(b @ b.T / tau, across.T, negatives[1])
    return (one + other) / 2


def _one_way(within: Tensor, across: Tensor, negatives: Tensor) -> Tensor:
    positive = across.diagonal()
    lowest = torch.finfo(within.dtype).min
    logits = torch.cat((within.masked_fill(~negatives, lowest), across.masked_fill(~negatives, lowest)), 1)
    counted = negatives.any(1)
    losses = torch.where(counted, logits.logsumexp(1) - positive, torch.zeros_like(positive))
    return losses.sum() / counted.sum().clamp(min=1)
