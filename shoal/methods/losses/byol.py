"""Bootstrap your own latent (Grill et al. 2020): a network predicts a slow copy's projection of another view.

Shapes: n samples, p projection dimensions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.methods.losses.unit_rows import unit_rows
from shoal.models.heads import ByolClusterNet, ByolNet
from shoal.models.network_copies import copy_network


def byol_loss(predictions: Tensor, targets: Tensor) -> Tensor:
    """Return |unit(q) - unit(z')|^2 = 2 - 2 cos, mean over samples, summed over both directions (eq. 2, symmetrised).

    Args:
        predictions: (2n, p), of views a, then of views b, by the online network.
        targets: (2n, p), projections of the same views by the target; no gradient flows into them.

    Returns:
        A scalar from 0 (all agree) to 8.
    """
    others = unit_rows(targets.detach()).view(2, len(targets) // 2, -1).flip(0).flatten(0, 1)
    return F.mse_loss(unit_rows(predictions), others, reduction="sum") / (len(targets) // 2)


def make_target(network: ByolNet | ByolClusterNet) -> nn.Sequential:
    """Return a copy of encoder and instance head without gradient: images in, projections (n, p) out."""
    parts = OrderedDict(encoder=network.encoder, instance=network.instance)
    return cast("nn.Sequential", copy_network(nn.Sequential(parts))).requires_grad_(False).train()


def update_target(target: Mapping[str, Tensor], online: Mapping[str, Tensor], momentum: float) -> None:
    """Move the target's parameters towards the network's: target = momentum target + (1 - momentum) network.

    BatchNorm's running statistics do not move: the target runs in training mode, so that its passes keep statistics of
    its own weights.

    Args:
        target: parameters of the target by name; changed in place.
        online: parameters of the network, with all names of the target's; of one client, or stacks of several clients'.
        momentum: share of its weights that the target keeps.
    """
    with torch.no_grad():
        torch._foreach_lerp_(list(target.values()), [online[name] for name in target], 1 - momentum)


def spread(z: Tensor) -> Tensor:
    """Return the standard deviation of unit vectors z (n, p) over samples, mean over dimensions, times sqrt(p).

    It is about 1 for vectors in all directions, and 0 where the representation has collapsed into one point.
    """
    result: Tensor = F.normalize(z.detach(), dim=1).std(0, correction=0).mean() * z.shape[1] ** 0.5
    return result
