"""Encoders: images (n, channels, height, width), vectors (n, columns) or windows (n, channels, length) to features."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from shoal.models.arrays import SeriesConv, VectorMLP
from shoal.models.plain import McMahanConv, PlainConv, PooledConv


def _convolutions(shape: tuple[int, ...], kernels: Sequence[tuple[int, int]]) -> list[nn.Module]:
    """Return convolutions with BatchNorm and ReLU, of (kernel, filters), for images (channels, height, width)."""
    channels = shape[0]
    side = min(shape[1:])
    layers: list[nn.Module] = []
    for kernel, filters in kernels:
        stride = 2 if side >= 7 else 1
        side = -(-side // stride)
        layers += [
            nn.Conv2d(channels, filters, kernel, stride=stride, padding=kernel // 2, bias=False),
            nn.BatchNorm2d(filters),
            nn.ReLU(inplace=True),
        ]
        channels = filters
    return layers


class SmallConv(nn.Module):
    """Three convolutions (5x5, 3x3, 3x3) with BatchNorm and ReLU, pooled to 4x4, then one linear layer.

    For CPUs: 230k parameters with its heads at the default width of 32 on grey images. Each convolution has stride
    2 as long as at least 4 pixels a side remain. The linear layer sees the whole image: an average over places
    would blur the differences between glyphs.

    Args:
        shape: (channels, height, width) of one image.
        width: filters of the first convolution; 2x in the others.
        features: width of the output.
    """

    def __init__(self, shape: tuple[int, ...], width: int = 32, features: int = 128) -> None:
        super().__init__()
        self.layers = nn.Sequential(*_convolutions(shape, ((5, width), (3, 2 * width), (3, 2 * width))))
        self.out = nn.Sequential(
            nn.Linear(32 * width, features, bias=False), nn.BatchNorm1d(features), nn.ReLU(inplace=True)
        )
        self.features = features

    def forward(self, x: Tensor) -> Tensor:
        """Return features (n, features)."""
        places = self.layers(x)
        if places.shape[-2:] != (4, 4):  # pooling has a slow backward pass, even where it changes nothing
            places = nn.functional.adaptive_avg_pool2d(places, 4)
        result: Tensor = self.out(torch.flatten(places, 1))
        return result


class AveragedConv(nn.Module):
    """Four convolutions (5x5, then 3x3) with BatchNorm, ReLU between them, and the average over places.

    For self-supervised learning on CPUs, of the size of `SmallConv` at a width of 16: 75k parameters on colour
    images. Its features are neither standardised nor clipped, so that they can spread over the sphere; `SmallConv`
    ends in BatchNorm and ReLU. ResNet-18 has a ReLU before its average; with so few layers all averages would then be
    nearly equal. For clustering take `SmallConv`: an average over places blurs the differences between glyphs.

    Args:
        shape: (channels, height, width) of one image.
        width: filters of the first convolution; 2x and 3x in the next two, which have stride 2 like the first as long
            as at least 4 pixels a side remain.
        features: filters of the last convolution, of stride 1, which is the width of the output.
    """

    def __init__(self, shape: tuple[int, ...], width: int = 16, features: int = 128) -> None:
        super().__init__()
        kernels = ((5, width), (3, 2 * width), (3, 3 * width), (3, features))
        self.layers = nn.Sequential(*_convolutions(shape, kernels)[:-1])
        self.features = features

    def forward(self, x: Tensor) -> Tensor:
        """Return features (n, features)."""
        result: Tensor = self.layers(x).mean((2, 3))
        return result


class ResNet18(nn.Module):
    """ResNet-18 (He et al. 2016) without its classifier.

    Args:
        shape: (channels, height, width) of one image.
        stem: `cifar` is a 3x3 convolution of stride 1 without max-pooling, for sides up to 64 pixels; `standard` is
            the 7x7 convolution of stride 2 with max-pooling.
    """

    def __init__(self, shape: tuple[int, ...], stem: str = "cifar") -> None:
        from torchvision.models import resnet18  # here: it takes seconds to import, and few runs need it

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
        """Return features (n, 512)."""
        result: Tensor = self.net(x)
        return result


PIXELS = "pixels"
"""Named in place of an encoder by methods that train none: samples are taken as they are."""
ENCODERS: dict[str, Callable[[tuple[int, ...]], nn.Module]] = {
    "small-conv": SmallConv,
    "tiny-conv": lambda shape: SmallConv(shape, width=16),
    "averaged-conv": AveragedConv,
    "plain-conv": PlainConv,
    "plain-conv5": lambda shape: PlainConv(shape, (32, 64, 128), 128),
    "pooled-conv": PooledConv,
    "mcmahan": McMahanConv,
    "mcmahan-small": lambda shape: McMahanConv(shape, (16, 32), 128, 0),
    "resnet18": lambda shape: ResNet18(shape, "cifar" if max(shape[1:]) <= 64 else "standard"),
    "resnet18-cifar": lambda shape: ResNet18(shape, "cifar"),
    "resnet18-standard": lambda shape: ResNet18(shape, "standard"),
    "mlp": VectorMLP,
    "series-conv": SeriesConv,
}
OF_KIND = {"vector": "mlp", "series": "series-conv"}
"""The encoder of each kind of data but images, which have all others."""


def encoders_for(kind: str) -> list[str]:
    """Return the names of the encoders that take data of a kind.

    >>> encoders_for("series")
    ['series-conv']
    """
    if kind in OF_KIND:
        return [OF_KIND[kind]]
    return [name for name in ENCODERS if name not in OF_KIND.values()]


def build_encoder(name: str, shape: tuple[int, ...]) -> nn.Module:
    """Return an encoder by name; its attribute `features` is the width of its output.

    Raises:
        ValueError: no such encoder.
    """
    if name not in ENCODERS:
        raise ValueError(f"no encoder {name!r}; there are {', '.join(ENCODERS)}")
    return ENCODERS[name](shape)
