"""FedProx's term, which keeps local steps near their initial model (Li et al. 2020, arXiv 1812.06127, eq. 2).

The loss of a step gains (mu / 2) |w - w_0|^2 over the parameters w of the network, w_0 those at the start of the round.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

ANCHOR = "proximal/"
"""Prefix of the initial parameters among a step's extra tensors."""


def anchors(network: nn.Module) -> dict[str, Tensor]:
    """Return a copy of a network's parameters, by their names with `ANCHOR` before them."""
    return {ANCHOR + name: parameter.detach().clone() for name, parameter in network.named_parameters()}


def squared_distance(parameters: Mapping[str, Tensor], extra: Mapping[str, Tensor]) -> Tensor:
    """Return |w - w_0|^2, a scalar float32.

    Args:
        parameters: w by name.
        extra: with w_0, as `anchors` names them.
    """
    parts = [(tensor - extra[ANCHOR + name]).float().square().sum() for name, tensor in parameters.items()]
    return torch.stack(parts).sum()
