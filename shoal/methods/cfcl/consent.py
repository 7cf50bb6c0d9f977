"""How many of its samples a CF-CL device consents to share, over the whole run."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from shoal.methods.contract.message import Tensors


def consented(positions: Tensor, limit: int | None, memory: Tensors, rng: np.random.Generator) -> Tensor:
    """The positions a device shares, counted: a random choice of them where it consents to fewer.

    Args:
        positions: int64 (m,), what was asked for.
        limit: how many it shares in all; None: any number.
        memory: the device's; `shared` counts.
        rng: of the choice.
    """
    done = int(memory.get("shared", torch.tensor(0)))
    if limit is not None and len(positions) > (left := max(0, limit - done)):
        positions = positions[torch.from_numpy(np.sort(rng.choice(len(positions), left, replace=False)))]
    memory["shared"] = torch.tensor(done + len(positions))
    return positions
