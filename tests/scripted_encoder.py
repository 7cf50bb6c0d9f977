"""A tiny encoder in TorchScript, for tests: the mean of each colour."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch import Tensor, nn


class Means(nn.Module):
    """Images (n, 3, height, width) to the mean of each colour times a factor, (n, 3)."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3)) * self.factor


class Patches(Means):
    """Images to the means of 4 x 4 parts times a factor, (n, 48)."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.flatten(nn.functional.adaptive_avg_pool2d(x, 4), 1) * self.factor


class Contrasts(Means):
    """Images to the spread of each colour times a factor, (n, 3)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.std((2, 3)) * self.factor


def write_scripted(path: Path, factor: float = 1.0, kind: type[Means] = Means) -> Path:
    """Write the encoder to a file; make its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(kind(factor).eval()).save(str(path))
    return path
