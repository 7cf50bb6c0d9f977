"""EfficientNet-Lite0 (Tan and Le 2019, the variant of TensorFlow's repository for phones): features of images.

Compared with EfficientNet-B0 it has no squeeze-and-excitation, and ReLU6 in place of swish. Convolutions pad as
TensorFlow does, by the size of their input, so that the published weights give the published features.

Symbols in shapes: n images.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEATURES = 1280
"""Width of the output."""
STAGES = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)
"""Expansion, channels, blocks, stride of the first block, and kernel size of each stage."""
NORM_EPSILON = 1e-3
STEM = 3
"""Layers before the first stage."""
MIDDLE = (3, 4, 5)
"""Stages whose features tell shapes and textures apart that the last layer, trained for names of objects, does not."""
MIDDLE_FEATURES = 2 * sum(STAGES[stage][1] for stage in MIDDLE)
QUARTERS = 4


class SameConv(nn.Conv2d):
    """A convolution without bias whose output has the input's side divided by the stride, rounded up."""

    def __init__(self, channels: int, filters: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(channels, filters, kernel, stride, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return features (n, filters, height, width)."""
        vertical = self._padding(x.shape[2], self.kernel_size[0], self.stride[0])
        horizontal = self._padding(x.shape[3], self.kernel_size[1], self.stride[1])
        return super().forward(F.pad(x, (*horizontal, *vertical)))

    @staticmethod
    def _padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
        """Return the padding before and after; of an odd number more after, as in TensorFlow."""
        total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        return total // 2, total - total // 2


class Block(nn.Module):
    """An inverted residual block: expansion, depthwise convolution, projection."""

    def __init__(self, channels: int, filters: int, expansion: int, stride: int, kernel: int) -> None:
        super().__init__()
        wide = channels * expansion
        layers: list[nn.Module] = []
        if expansion > 1:
            layers += [SameConv(channels, wide, 1), nn.BatchNorm2d(wide, NORM_EPSILON), nn.ReLU6()]
        layers += [SameConv(wide, wide, kernel, stride, groups=wide), nn.BatchNorm2d(wide, NORM_EPSILON), nn.ReLU6()]
        layers += [SameConv(wide, filters, 1), nn.BatchNorm2d(filters, NORM_EPSILON)]
        self.layers = nn.Sequential(*layers)
        self.residual = stride == 1 and channels == filters

    def forward(self, x: Tensor) -> Tensor:
        """Return features (n, filters, height, width)."""
        result: Tensor = self.layers(x)
        if self.residual:
            result = result + x
        return result


class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0 without its classifier: images (n, 3, height, width) to features (n, 1280)."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [SameConv(3, 32, 3, 2), nn.BatchNorm2d(32, NORM_EPSILON), nn.ReLU6()]
        channels = 32
        for expansion, filters, blocks, first_stride, kernel in STAGES:
            for number in range(blocks):
                stride = first_stride if number == 0 else 1
                layers.append(Block(channels, filters, expansion, stride, kernel))
                channels = filters
        layers += [SameConv(channels, FEATURES, 1), nn.BatchNorm2d(FEATURES, NORM_EPSILON), nn.ReLU6()]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Return the average over places of the last features, (n, 1280)."""
        features: Tensor = self.layers(x)
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
        ends = list(accumulate((blocks for _, _, blocks, _, _ in STAGES), initial=STEM))[1:]
        middle = {ends[stage] for stage in MIDDLE}
        middle_maps = []
        for number, layer in enumerate(self.layers, 1):
            x = layer(x)
            if number in middle:
                middle_maps.append(x)
        whole = means_and_deviations(middle_maps)
        quarters = means_and_deviations([quarters_of(maps) for maps in middle_maps])
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
