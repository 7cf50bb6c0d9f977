"""The space in which images are clustered by landmarks: directions among the layers of the frozen encoder.

Symbols in shapes: n samples, d features.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.decomposition import PCA
from sklearn.preprocessing import normalize

from shoal.methods.auto import COMPONENTS, LAYERS
from shoal.models.frozen import frozen_encoder, layer_widths_of


@torch.no_grad()
def layers_of(images: np.ndarray) -> np.ndarray:
    """Return what the frozen encoder's layers make of images uint8 (n, height, width[, 3]), float64 (n, d)."""
    whole = images.reshape(*images.shape[:3], -1).transpose(0, 3, 1, 2)
    x = torch.from_numpy(np.ascontiguousarray(whole)).float() / 255
    frozen = frozen_encoder(LAYERS)
    return torch.cat([frozen(part) for part in x.split(64)]).double().numpy()


def directions_of(layers: np.ndarray) -> np.ndarray:
    """Return features of the encoder's layers (n, d), all of the same variance, as directions (n, k)."""
    groups = np.split(layers, np.cumsum(layer_widths_of(LAYERS))[:-1], 1)
    balanced = np.hstack([even_variance(group) for group in groups])
    directions: np.ndarray = normalize(half_whitened(balanced))
    return directions


def even_variance(x: np.ndarray) -> np.ndarray:
    """Return vectors (n, d), centred, whose variances add up to 1."""
    centred = x - x.mean(0)
    evened: np.ndarray = centred / np.sqrt((centred**2).sum() / len(x))
    return evened


def half_whitened(x: np.ndarray) -> np.ndarray:
    """Return the first principal components of vectors (n, d), over the fourth root of their variance."""
    model = PCA(min(COMPONENTS, *x.shape), svd_solver="randomized", random_state=0).fit(x)
    scale = np.maximum(model.explained_variance_, 1e-12) ** -0.25
    projected: np.ndarray = model.transform(x) * scale
    return projected
