"""`history`: similarities of each client's updates summed over rounds, older ones counting less.

Where clients hold few samples, what one pulls towards swings from round to round with what the others have just taught
the model; the swings cancel in the sum, what the client's group shares does not.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from shoal.methods.contract.base import Update


def discounted_sum(
    past: Tensor | None, updates: Mapping[int, Update], discount: float, clients: int, size: int
) -> Tensor:
    """Each client's updates so far, float32 (clients, p); zeros for a client that never sent any.

    Args:
        past: the sum before this round; None in the first.
        updates: of this round, by client.
        discount: what the sum before counts beside this round's update.
        clients: how many there are in all.
        size: p, how many of an update's numbers are parameters.
    """
    past = torch.zeros(clients, size) if past is None else past.clone()
    for client, update in updates.items():
        past[client] = discount * past[client] + update.message.tensors["update"][:size]
    return past
