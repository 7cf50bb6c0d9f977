"""Images to vectors with a frozen encoder, some at a time."""

from __future__ import annotations

from itertools import chain

import numpy as np
import torch
from torch import nn

BATCH = 64
"""Images that an encoder sees at once; the last bits of a vector may depend on it."""


@torch.no_grad()
def encode_images(encoder: nn.Module, images: np.ndarray) -> np.ndarray:
    """Return the vectors float32 (n, d) of images uint8 (n, channels, height, width).

    Args:
        encoder: images in [0, 1] to vectors (`shoal.models.frozen.FrozenEncoder`).
        images: at least one.
    """
    device = next(chain(encoder.parameters(), encoder.buffers()), torch.empty(0)).device
    parts = torch.from_numpy(np.array(images)).split(BATCH)
    vectors: np.ndarray = torch.cat([encoder(part.to(device).float().div_(255)).cpu() for part in parts]).numpy()
    return vectors
