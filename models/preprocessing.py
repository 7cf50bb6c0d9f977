"""How images are prepared for a pretrained network: size, colours, mean and deviation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

COLOURS = 3
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_DEVIATION = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Preprocessing:
    """The images that a pretrained network was trained on. Nothing is cropped: the whole image is resized.

    Attributes:
        sides: pixels a side of the square that an image is resized to: the first that holds it, else the last.
        mean, deviation: of each colour of a pixel in [0, 1].
        interpolation: between pixels.
    """

    sides: tuple[int, ...] = (224,)
    mean: tuple[float, ...] = IMAGENET_MEAN
    deviation: tuple[float, ...] = IMAGENET_DEVIATION
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"

    def apply(self, x: Tensor) -> Tensor:
        """Return images (n, 1 or 3, height, width) in [0, 1] as the network takes them, (n, 3, side, side).

        Grey images become three equal colours.
        """
        largest = max(x.shape[2:])
        side = next((side for side in self.sides if largest <= side), self.sides[-1])
        x = F.interpolate(x, (side, side), mode=self.interpolation, align_corners=False, antialias=True)
        if self.interpolation == "bicubic":
            x = x.clamp(0, 1)
        x = x.expand(-1, COLOURS, -1, -1)
        colours = zip(x.unbind(1), self.mean, self.deviation, strict=True)
        x = torch.stack([(colour - mean) / deviation for colour, mean, deviation in colours], 1)
        return x.contiguous(memory_format=torch.channels_last)

    def in_words(self) -> str:
        """Return the preprocessing for a table."""
        sides = " or ".join(map(str, self.sides))
        mean = ", ".join(f"{value:g}" for value in self.mean)
        deviation = ", ".join(f"{value:g}" for value in self.deviation)
        return f"{sides} pixels a side ({self.interpolation}), mean {mean}, deviation {deviation}"
