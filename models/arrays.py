"""Encoders of vectors (n, columns) and of windows of series (n, channels, length).

Both begin with BatchNorm without weights, which brings columns and channels to one scale: the server averages its
statistics as those of every layer, or measures them over all clients (`evaluate.recalibrate`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class VectorMLP(nn.Module):
    """Two linear layers with BatchNorm and ReLU, for tables and embeddings.

    Args:
        shape: (columns,).
        hidden: width of the first layer.
        features: width of the output.
    """

    def __init__(self, shape: tuple[int, ...], hidden: int = 256, features: int = 128) -> None:
        super().__init__()
        (columns,) = shape
        self.layers = nn.Sequential(
            nn.BatchNorm1d(columns, affine=False),
            nn.Linear(columns, hidden, bias=False),
            nn.BatchNorm1d(hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, features, bias=False),
            nn.BatchNorm1d(features),
            nn.ReLU(inplace=True),
        )
        self.features = features

    def forward(self, x: Tensor) -> Tensor:
        """Return features (n, features)."""
        result: Tensor = self.layers(x)
        return result


class SeriesConv(nn.Module):
    """Three convolutions over time with BatchNorm and ReLU; mean and maximum over time, then one linear layer.

    The mean over time forgets when something happens within a window, and keeps how often and how strongly.

    Args:
        shape: (channels, length) of one window.
        width: filters of the first convolution; 2x in the others. Each has stride 2 as long as at least 8 times remain.
        features: width of the output.
    """

    def __init__(self, shape: tuple[int, ...], width: int = 32, features: int = 128) -> None:
        super().__init__()
        channels, length = shape
        layers: list[nn.Module] = [nn.BatchNorm1d(channels, affine=False)]
        for kernel, filters in ((7, width), (5, 2 * width), (5, 2 * width)):
            stride = 2 if length >= 16 else 1
            length = -(-length // stride)
            layers += [
                nn.Conv1d(channels, filters, kernel, stride=stride, padding=kernel // 2, bias=False),
                nn.BatchNorm1d(filters),
                nn.ReLU(inplace=True),
            ]
            channels = filters
        self.layers = nn.Sequential(*layers)
        self.out = nn.Sequential(
            nn.Linear(2 * channels, features, bias=False), nn.BatchNorm1d(features), nn.ReLU(inplace=True)
        )
        self.features = features

    def forward(self, x: Tensor) -> Tensor:
        """Return features (n, features)."""
        times = self.layers(x)
        result: Tensor = self.out(torch.cat((times.mean(2), times.amax(2)), 1))
        return result
