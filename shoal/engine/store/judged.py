"""The tensors that replace those of a state in its evaluation, in a file beside the state."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from shoal.engine.store.codec import load_tensors, save_tensors
from shoal.engine.store.round_paths import JUDGED
from shoal.methods.contract.message import Tensors


def judged_tensors(server: Path) -> Tensors:
    """Return the tensors that replace those of a state; empty without any.

    Raises:
        StoreError: the file is damaged.
    """
    path = server.parent / JUDGED
    if not path.exists():
        return {}
    return load_tensors(path)[0]


def save_judged(server: Path, judged: Mapping[str, np.ndarray]) -> None:
    """Write the tensors that replace those of a state, if there are any; those of an earlier try go."""
    path = server.parent / JUDGED
    path.unlink(missing_ok=True)
    if judged:
        save_tensors(path, {name: torch.tensor(array) for name, array in judged.items()})
