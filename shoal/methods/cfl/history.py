"""`history`: each client's updates summed over rounds, with less weight on older ones.

Where clients hold few samples, a client's pull swings from round to round with what the others have just taught the
model. The swings cancel in the sum; what the client's group shares does not.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from shoal.methods.contract.base import Update


def discounted_sum(
    past: Tensor | None, updates: Mapping[int, Update], discount: float, clients: int, size: int
) -> Tensor:
    """Return the sum of each client's updates so far, float32 (clients, p); zeros for a client that never sent one.

    Args:
        past: the sum before this round; None in the first.
        updates: of this round, by client.
        discount: weight of the sum before, beside this round's update.
        clients: number of all clients.
        size: p, how many of an update's numbers are parameters.
    """
    past = torch.zeros(clients, size) if past is None else past.clone()
    for client, update in updates.items():
        past[client] = discount * past[client] + update.message.tensors["update"][:size]
    return past
