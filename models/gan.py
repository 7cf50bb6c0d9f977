"""Small networks for ClusterGAN: a generator, an encoder and a critic for images of any even side."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def _halvings(shape: tuple[int, ...]) -> int:
    """Return how often both sides can be halved, at most twice."""
    return next((n for n in (2, 1) if shape[1] % 2**n == 0 and shape[2] % 2**n == 0), 0)


class Generator(nn.Module):
    """A generator from latent vectors (n, latent) to images (n, *shape) in [0, 1].

    Args:
        latent: width of the latent vector, the one-hot part included.
        shape: (channels, height, width).
        width: filters.
    """

    def __init__(self, latent: int, shape: tuple[int, ...], width: int = 32) -> None:
        super().__init__()
        ups = _halvings(shape)
        self.base = (2 * width, shape[1] // 2**ups, shape[2] // 2**ups)
        self.first = nn.Sequential(nn.Linear(latent, math.prod(self.base)), nn.LeakyReLU(0.2))
        layers: list[nn.Module] = []
        channels = 2 * width
        for _ in range(ups):
            layers += [nn.ConvTranspose2d(channels, width, 4, stride=2, padding=1), nn.LeakyReLU(0.2)]
            channels = width
        self.layers = nn.Sequential(*layers, nn.Conv2d(channels, shape[0], 3, padding=1), nn.Sigmoid())

    def forward(self, z: Tensor) -> Tensor:
        """Return images of latent vectors."""
        result: Tensor = self.layers(self.first(z).view(-1, *self.base))
        return result


def _reader(shape: tuple[int, ...], outputs: int, width: int) -> nn.Sequential:
    layers = nn.Sequential(
        nn.Conv2d(shape[0], width, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
    )
    numbers = layers(torch.zeros(1, *shape)).numel()
    return layers.extend([nn.Linear(numbers, 4 * width), nn.LeakyReLU(0.2), nn.Linear(4 * width, outputs)])


def _dense(inputs: int, outputs: int, width: int) -> list[nn.Module]:
    """Return two hidden layers of `width` units and an output layer."""
    hidden: list[nn.Module] = []
    for size in (inputs, width):
        hidden += [nn.Linear(size, width), nn.LeakyReLU(0.2)]
    return [*hidden, nn.Linear(width, outputs)]


class ClusterGANNetwork(nn.Module):
    """Generator, encoder and critic together (Mukherjee et al. 2019), so that they travel as one.

    Args:
        latent: width of the continuous part of the latent vector.
        clusters: width of its one-hot part.
        shape: of one image.
        width: filters, or units of each hidden layer.
        dense: use linear layers instead of convolutions: several times as fast on small images on a CPU.
    """

    def __init__(
        self, latent: int, clusters: int, shape: tuple[int, ...], width: int = 32, dense: bool = False
    ) -> None:
        super().__init__()
        self.latent = latent
        self.clusters = clusters
        pixels = math.prod(shape)
        if dense:
            image = nn.Unflatten(1, shape)
            self.generator: nn.Module = nn.Sequential(*_dense(latent + clusters, pixels, width), nn.Sigmoid(), image)
            self.encoder = nn.Sequential(nn.Flatten(), *_dense(pixels, latent + clusters, width))
            self.critic = nn.Sequential(nn.Flatten(), *_dense(pixels, 1, width))
        else:
            self.generator = Generator(latent + clusters, shape, width)
            self.encoder = _reader(shape, latent + clusters, width)
            self.critic = _reader(shape, 1, width)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the continuous part (n, latent) and the cluster's logits (n, clusters) of images."""
        both = self.encoder(x)
        return both[:, : self.latent], both[:, self.latent :]

    def judge(self, x: Tensor) -> Tensor:
        """Return the critic's score of each image, (n,)."""
        result: Tensor = self.critic(x).squeeze(1)
        return result

    def generate(self, z: Tensor, cluster: Tensor) -> Tensor:
        """Return images of continuous parts (n, latent) and cluster numbers (n,)."""
        result: Tensor = self.generator(torch.cat((z, nn.functional.one_hot(cluster, self.clusters).to(z)), 1))
        return result
