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
            nn.Conv2d(shape[0], width, 5, padding=2, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(2 * width, 4 * width, 3, padding=1, bias=False),
            nn.BatchNorm2d(4 * width),
            nn.ReLU(inplace=True),
            nn.Conv2d(4 * width, self.features, 3, padding=1, bias=False),
            nn.BatchNorm2d(self.features),
            nn.ReLU(inplace=True),
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
