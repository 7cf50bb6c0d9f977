"""Encoders: images (n, channels, height, width) in, features (n, features) out."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torchvision.models import resnet18


class SmallConv(nn.Module):
    """Three convolutions (5x5, 3x3, 3x3) with BatchNorm and ReLU, then global average pooling.

    For CPUs: 110k parameters with its heads at the default width of 32 on grey images. The first two convolutions
    have stride 2, only the first one on images of 16 pixels a side or fewer.

    Args:
        shape: (channels, height, width) of one image.
        width: filters of the first convolution; 2x and 4x in the next.
    """

    def __init__(self, shape: tuple[int, ...], width: int = 32) -> None:
        super().__init__()
        strides = (2, 2, 1) if min(shape[1:]) > 16 else (2, 1, 1)
        channels = shape[0]
        layers: list[nn.Module] = []
        for kernel, filters, stride in zip((5, 3, 3), (width, 2 * width, 4 * width), strides, strict=True):
            layers += [
                nn.Conv2d(channels, filters, kernel, stride=stride, padding=kernel // 2, bias=False),
                nn.BatchNorm2d(filters),
                nn.ReLU(inplace=True),
            ]
            channels = filters
        self.layers = nn.Sequential(*layers)
        self.features = channels

    def forward(self, x: Tensor) -> Tensor:
        """Features (n, 4 * width)."""
        return torch.flatten(nn.functional.adaptive_avg_pool2d(self.layers(x), 1), 1)


class ResNet18(nn.Module):
    """ResNet-18 (He et al. 2016) without its classifier.

    Args:
        shape: (channels, height, width) of one image.
        stem: `cifar` is a 3x3 convolution of stride 1 without max-pooling, for sides up to 64 pixels; `standard` is
            the 7x7 convolution of stride 2 with max-pooling.
    """

    def __init__(self, shape: tuple[int, ...], stem: str = "cifar") -> None:
        super().__init__()
        self.net = resnet18(weights=None)
        if stem == "cifar":
            self.net.conv1 = nn.Conv2d(shape[0], 64, 3, padding=1, bias=False)
            self.net.maxpool = nn.Identity()
        else:
            self.net.conv1 = nn.Conv2d(shape[0], 64, 7, stride=2, padding=3, bias=False)
        self.features = self.net.fc.in_features
        self.net.fc = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Features (n, 512)."""
        return self.net(x)


ENCODERS: dict[str, Callable[[tuple[int, ...]], nn.Module]] = {
    "small-conv": SmallConv,
    "tiny-conv": lambda shape: SmallConv(shape, width=16),
    "resnet18": lambda shape: ResNet18(shape, "cifar" if max(shape[1:]) <= 64 else "standard"),
    "resnet18-cifar": lambda shape: ResNet18(shape, "cifar"),
    "resnet18-standard": lambda shape: ResNet18(shape, "standard"),
}


def build_encoder(name: str, shape: tuple[int, ...]) -> nn.Module:
    """An encoder by name; its attribute `features` is the width of its output.

    Raises:
        ValueError: no such encoder.
    """
    if name not in ENCODERS:
        raise ValueError(f"no encoder {name!r}; there are {', '.join(ENCODERS)}")
    return ENCODERS[name](shape)
