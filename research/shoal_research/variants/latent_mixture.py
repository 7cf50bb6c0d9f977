"""One normalising flow whose latent density is a mixture of K Gaussians: K flows that differ in the last step."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from shoal.models.normalising_flows import LOG_2PI, Flow

MEANS = "means"
"""Name of the parameter with the mean of each cluster, (K, d)."""
LOG_DEVIATIONS = "log_deviations"
"""Name of the parameter with the log-deviations of each cluster, (K, d)."""


class LatentMixture(nn.Module):
    """log p_k(x) = log N(z; m_k, diag(s_k^2)) + log |det dz/dx|, with z = flow(x) for every cluster k.

    The determinant is the same for all clusters and cancels where they are compared.

    Args:
        flow: the trunk that the clusters share.
        clusters: number of clusters K.
    """

    def __init__(self, flow: Flow, clusters: int) -> None:
        super().__init__()
        self.flow = flow
        dimensions = math.prod(flow.shape)
        self.means = nn.Parameter(torch.zeros(clusters, dimensions))
        self.log_deviations = nn.Parameter(torch.zeros(clusters, dimensions))

    def latent(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return z, flattened (n, d), and the log-determinant (n,)."""
        z, log_det = self.flow(x)
        return z.flatten(1), log_det

    def forward(self, x: Tensor) -> Tensor:
        """Return the log-density in nats of each point under each cluster, (n, K)."""
        z, log_det = self.latent(x)
        scaled = (z[:, None] - self.means) * (-self.log_deviations).exp()
        density = -0.5 * (scaled.square().sum(2) + z.shape[1] * LOG_2PI) - self.log_deviations.sum(1)
        return density + log_det[:, None]


def breadth(log_shares: Tensor) -> Tensor:
    """Return a client's effective number of clusters: exp of the entropy of its shares, given their logs (K,).

    >>> breadth(torch.tensor([0.5, 0.5, 1e-30]).log()).round(decimals=4)
    tensor(2.)
    """
    return (-(log_shares.exp() * log_shares).sum()).exp()
