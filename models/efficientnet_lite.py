"""EfficientNet-Lite0 (Tan and Le 2019, the variant of TensorFlow's repository for phones): features of images.

The network is timm's, which pads as TensorFlow does, so that the published weights give the published features.

Symbols in shapes: n images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

FEATURES = 1280
"""Width of the output."""
MIDDLE = (3, 4, 5)
"""Stages whose features tell shapes and textures apart that the last layer, trained for names of objects, does not."""
MIDDLE_FEATURES = 2 * (80 + 112 + 192)
QUARTERS = 4


class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0 without its classifier: images (n, 3, height, width) to features (n, 1280)."""

    def __init__(self) -> None:
        super().__init__()
        import timm  # here: it takes a second to import, and need not be installed

        self.network: Any = timm.create_model("tf_efficientnet_lite0", num_classes=0)

    def forward(self, x: Tensor) -> Tensor:
        """Return the average over places of the last features, (n, 1280)."""
        features: Tensor = self.network.forward_features(x)
        return features.mean((2, 3))


class EfficientNetLite0Layers(EfficientNetLite0):
    """The last layer and middle ones: images (n, 3, height, width) to features (n, 5120).

    The features of the last layer come first. Means over places of the stages in `MIDDLE` follow, stage by stage, then
    their deviations; then both of each quarter of the image, which tell where something is.
    """

    layer_widths = (FEATURES, MIDDLE_FEATURES, QUARTERS * MIDDLE_FEATURES)
    """Features of the last layer, of those in the middle, and of these in quarters."""

    def forward(self, x: Tensor) -> Tensor:
        """Return features (n, 5120)."""
        network = self.network
        x = network.bn1(network.conv_stem(x))
        maps = []
        for stage in network.blocks:
            x = stage(x)
            maps.append(x)
        middle_maps = [maps[number] for number in MIDDLE]
        x = network.bn2(network.conv_head(x))
        whole = means_and_deviations(middle_maps)
        quarters = means_and_deviations([quarters_of(each) for each in middle_maps])
        return torch.cat([x.mean((2, 3)), whole, quarters.view(len(x), -1)], 1)


def means_and_deviations(maps: Sequence[Tensor]) -> Tensor:
    """Return the means over places of maps (n, c, height, width), one after the other, then their deviations."""
    means = [each.mean((2, 3), keepdim=True) for each in maps]
    squares = [(each - mean).square() for each, mean in zip(maps, means, strict=True)]
    deviations = [each.mean((2, 3)).sqrt() for each in squares]
    return torch.cat([*(mean.flatten(1) for mean in means), *deviations], 1)


def quarters_of(maps: Tensor) -> Tensor:
    """Return the four quarters of maps (n, c, height, width) one after the other, (4n, c, height / 2, width / 2).

    With an odd side they share the middle.
    """
    height, width = ((side + 1) // 2 for side in maps.shape[2:])
    above = maps[:, :, :height]
    below = maps[:, :, -height:]
    parts = [above[..., :width], above[..., -width:], below[..., :width], below[..., -width:]]
    return torch.stack(parts, 1).flatten(0, 1)
