"""RotNet: a network that predicts by how much an image was rotated (Gidaris, Singh, Komodakis 2018)."""

from __future__ import annotations

from torch import Tensor, nn


class RotNet(nn.Module):
    """Four convolutions in the manner of AlexNet, for small images, and a classifier of four rotations.

    Args:
        shape: (channels, height, width) of one image.
        width: filters of the first convolution, doubled in the second and in the third.
    """

    features = 256
    """Width of `embed`: filters of the last convolution, whose activations are averaged over the image."""

    def __init__(self, shape: tuple[int, ...], width: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *convolution(shape[0], width, 5),
            nn.MaxPool2d(2),
            *convolution(width, 2 * width, 3),
            nn.MaxPool2d(2),
            *convolution(2 * width, 4 * width, 3),
            *convolution(4 * width, self.features, 3),
        )
        self.classifier = nn.Linear(self.features, 4)

    def embed(self, x: Tensor) -> Tensor:
        """Return representations (n, 256) of images (n, channels, height, width)."""
        result: Tensor = self.layers(x).mean((2, 3))
        return result

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, 4) of the rotations by 0, 90, 180 and 270 degrees."""
        result: Tensor = self.classifier(self.embed(x))
        return result


def convolution(channels: int, filters: int, side: int) -> tuple[nn.Module, ...]:
    """Return a convolution that keeps the image's size, with BatchNorm and ReLU."""
    layer = nn.Conv2d(channels, filters, side, padding=side // 2, bias=False)
    return layer, nn.BatchNorm2d(filters), nn.ReLU(inplace=True)
