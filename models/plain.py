"""Convolutional encoders without normalisation: all their tensors are weights, so that updates can be compared."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class _Plain(nn.Module):
    """Convolutions, then one linear layer with ReLU.

    Args:
        layers: the convolutions.
        shape: (channels, height, width) of one image.
        features: width of the output.
    """

    def __init__(self, layers: Sequence[nn.Module], shape: tuple[int, ...], features: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        numbers = self.layers(torch.zeros(1, *shape)).numel()
        self.out = nn.Sequential(nn.Linear(numbers, features), nn.ReLU(inplace=True))
        self.features = features

    def forward(self, x: Tensor) -> Tensor:
        """Return features (n, features) of images (n, channels, height, width)."""
        result: Tensor = self.out(self.layers(x).flatten(1))
        return result


class PlainConv(_Plain):
    """Convolutions of 3x3 with stride 2 and ReLU, then one linear layer with ReLU.

    Two convolutions and 48 features make a classifier of about 80,000 weights on 28x28 images; three convolutions
    of 32, 64, 128 filters and 128 features make, with the classifier, five layers for 32x32 colour images.

    Args:
        shape: (channels, height, width) of one image.
        filters: of each convolution.
        features: width of the output.
    """

    def __init__(self, shape: tuple[int, ...], filters: tuple[int, ...] = (16, 32), features: int = 48) -> None:
        layers: list[nn.Module] = []
        for channels, number in zip((shape[0], *filters), filters, strict=False):
            # A stride instead of pooling: a quarter of the work.
            layers += [nn.Conv2d(channels, number, 3, stride=2, padding=1), nn.ReLU(inplace=True)]
        super().__init__(layers, shape, features)


class McMahanConv(_Plain):
    """Two convolutions of 5x5, each with ReLU and 2x2 pooling, then one linear layer (McMahan et al. 2017, section 3).

    Args:
        shape: (channels, height, width) of one image.
        filters: of the two convolutions.
        features: width of the output.
        padding: of the convolutions; 2 keeps the sides, as in the paper (1.66 million weights on 28x28 images).
        kernel: side of a convolution.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        filters: tuple[int, int] = (32, 64),
        features: int = 512,
        padding: int = 2,
        kernel: int = 5,
    ) -> None:
        layers: list[nn.Module] = []
        for channels, number in zip((shape[0], *filters), filters, strict=False):
            # ReLU after pooling: the same values, a quarter of the work.
            layers += [nn.Conv2d(channels, number, kernel, padding=padding), nn.MaxPool2d(2), nn.ReLU(inplace=True)]
        super().__init__(layers, shape, features)


class PooledConv(McMahanConv):
    """McMahan's network with convolutions of 3x3 (16 and 32 filters), and linear layers of 128 and 64.

    This is the embedding network of CF-CL's experiments.

    Args:
        shape: (channels, height, width) of one image.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape, (16, 32), 128, padding=1, kernel=3)
        self.out.append(nn.Linear(128, 64))
        self.features = 64
