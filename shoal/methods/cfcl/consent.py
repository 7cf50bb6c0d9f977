"""How many of its samples a CF-CL device consents to share, over the whole run."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from shoal.methods.contract.message import Tensors


def consented(positions: Tensor, limit: int | None, memory: Tensors, rng: np.random.Generator) -> Tensor:
    """Return the positions that a device shares, a random choice where it consents to fewer, and count them.

    Args:
        positions: int64 (m,), the samples chosen for a neighbour.
        limit: number of samples that the device shares in the whole run; None: any number.
        memory: the device's; its `shared` counts the samples shared so far, and is replaced.
        rng: draws the choice.
    """
    shared = int(memory.get("shared", torch.tensor(0)))
    if limit is not None:
        remaining = max(0, limit - shared)
        if len(positions) > remaining:
            choice = np.sort(rng.choice(len(positions), remaining, replace=False))
            positions = positions[torch.from_numpy(choice)]
    memory["shared"] = torch.tensor(shared + len(positions))
    return positions
