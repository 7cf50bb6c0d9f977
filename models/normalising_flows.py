"""Normalising flows: invertible maps to a standard normal, with exact log-densities.

`log_prob` returns natural-log densities of the inputs. Flows of images take values in [0, 256) (dequantised bytes),
whose densities `bits_per_dimension` converts.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import cast

import torch
from torch import Tensor, nn

LOG_2PI = math.log(2 * math.pi)
MARGIN = 0.05
"""Distance from 0 and 1 of the values whose logit is taken."""


def standard_normal(z: Tensor) -> Tensor:
    """Return the log-density of N(0, I) at z (n, ...), summed over all but the first dimension: (n,)."""
    flat = z.flatten(1)
    return -0.5 * (flat.square().sum(1) + flat.shape[1] * LOG_2PI)


def bits_per_dimension(log_prob: Tensor, dimensions: int) -> Tensor:
    """Return negative log-densities of bytes in [0, 256) as bits per dimension."""
    return -log_prob / (dimensions * math.log(2))


class Flow(nn.Module):
    """An invertible map x -> z with a standard normal prior.

    Subclasses implement `forward(x) -> (z, log |det dz/dx|)`; `shape` is one sample's shape.
    """

    shape: tuple[int, ...]

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the log-density of each sample, (n,)."""
        z, log_det = self(x)
        result: Tensor = standard_normal(z) + log_det
        return result


class AffineFlow(Flow):
    """The map z = A (x - b) with a full matrix A: the normalising direction, whose loss is convex in A for a fixed b.

    Args:
        dimension: d.
    """

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.shape = (dimension,)
        self.matrix = nn.Parameter(torch.eye(dimension))
        self.shift = nn.Parameter(torch.zeros(dimension))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return z and log |det A|."""
        return (x - self.shift) @ self.matrix.T, torch.linalg.slogdet(self.matrix)[1].expand(len(x))


class Coupling(nn.Module):
    """An affine coupling: a network reads one part of the input, and scales and shifts the other part.

    Args:
        net: maps the part that is read to scales, then shifts, of the changed part (along dimension 1).
        channels: channels of the changed part, for the learned rescaling of tanh.
    """

    def __init__(self, net: nn.Module, channels: int) -> None:
        super().__init__()
        self.net = net
        self.rescale = nn.Parameter(torch.ones(channels))

    def forward(self, read: Tensor, changed: Tensor) -> tuple[Tensor, Tensor]:
        """Return the changed part after the coupling, and its log-determinant (n,)."""
        raw, shift = self.net(read).chunk(2, dim=1)
        log_scale = torch.tanh(raw) * self.rescale.view(1, -1, *[1] * (raw.dim() - 2))
        return changed * log_scale.exp() + shift, log_scale.flatten(1).sum(1)


class CouplingFlow(Flow, ABC):
    """A flow whose couplings read one part of the input and change the next, in turn.

    Attributes:
        couplings: in their order; number l reads part l modulo the number of parts.
    """

    couplings: nn.ModuleList

    @abstractmethod
    def split(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the parts of x, and the log-determinant (n,) of what was done before."""

    @abstractmethod
    def join(self, parts: list[Tensor]) -> Tensor:
        """Undo `split`, but for what was done before."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return z and the log-determinant (n,)."""
        parts, total = self.split(x)
        for layer, coupling in enumerate(self.couplings):
            read = layer % len(parts)
            changed = (read + 1) % len(parts)
            parts[changed], log_det = coupling(parts[read], parts[changed])
            total = total + log_det
        return self.join(parts), total


def linear_layers(inputs: int, width: int, outputs: int) -> nn.Sequential:
    """Return two hidden layers and a last one of zeros, so that a coupling begins as the identity."""
    last = nn.Linear(width, outputs)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), last)


class TabularRealNVP(CouplingFlow):
    """RealNVP of vectors: couplings that read one half and change the other, in turn (Dinh et al. 2017).

    Args:
        dimension: d, at least 2.
        couplings: number of couplings.
        width: of the hidden layers.
    """

    def __init__(self, dimension: int, couplings: int = 6, width: int = 128) -> None:
        super().__init__()
        self.shape = (dimension,)
        self.cut = dimension // 2
        sizes = (self.cut, dimension - self.cut)
        self.couplings = nn.ModuleList()
        for layer in range(couplings):
            changed = sizes[1 - layer % 2]
            self.couplings.append(Coupling(linear_layers(sizes[layer % 2], width, 2 * changed), changed))

    def split(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return both halves."""
        return [x[:, : self.cut], x[:, self.cut :]], x.new_zeros(len(x))

    def join(self, parts: list[Tensor]) -> Tensor:
        """Return the halves side by side."""
        return torch.cat(parts, 1)


def logit(x: Tensor) -> tuple[Tensor, Tensor]:
    """Map bytes in [0, 256) to the real line: the logit of a value squeezed into [MARGIN, 1 - MARGIN].

    Returns:
        The values, and the log-determinant (n,).
    """
    p = MARGIN + (1 - 2 * MARGIN) * x / 256
    log_det = math.log((1 - 2 * MARGIN) / 256) - p.log() - (1 - p).log()
    return p.log() - (1 - p).log(), log_det.flatten(1).sum(1)


class ScaleShiftNet(nn.Module):
    """A small residual network with weight and batch normalisation, from the part read to scales and shifts.

    Args:
        read, changed: channels of the part read, and of the part changed.
        width: filters.
        blocks: residual blocks.
    """

    def __init__(self, read: int, changed: int, width: int = 32, blocks: int = 2) -> None:
        super().__init__()
        normed = nn.utils.parametrizations.weight_norm
        self.first = normed(nn.Conv2d(read, width, 3, padding=1))
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(width),
                nn.ReLU(),
                normed(nn.Conv2d(width, width, 3, padding=1, bias=False)),
                nn.BatchNorm2d(width),
                nn.ReLU(),
                normed(nn.Conv2d(width, width, 3, padding=1)),
            )
            for _ in range(blocks)
        )
        last = nn.Conv2d(width, 2 * changed, 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(cast(Tensor, last.bias))
        self.last = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), last)

    def forward(self, x: Tensor) -> Tensor:
        """Return scales, then shifts, (n, 2 * changed, height, width)."""
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        result: Tensor = self.last(x)
        return result


class DenseScaleShiftNet(nn.Module):
    """Linear layers from all pixels of the part read to scales and shifts of as many pixels.

    They are several times as fast as convolutions on small images on a CPU, and have no batch statistics.

    Args:
        shape: of the part, (channels, height, width).
        width: units of each of the two hidden layers.
    """

    def __init__(self, shape: tuple[int, int, int], width: int) -> None:
        super().__init__()
        self.shape = shape
        self.layers = linear_layers(math.prod(shape), width, 2 * math.prod(shape))

    def forward(self, x: Tensor) -> Tensor:
        """Return scales, then shifts, (n, 2 * channels, height, width)."""
        channels, height, width = self.shape
        return cast(Tensor, self.layers(x.flatten(1))).view(-1, 2 * channels, height, width)


class CycleRealNVP(CouplingFlow):
    """RealNVP with the cycle mask: each coupling reads one quadrant of the image and changes only the next.

    The quadrants are 0 top-left, 1 top-right, 2 bottom-right, 3 bottom-left; coupling l reads quadrant l mod 4 and
    changes the next one, twice around. So only its neighbour can explain a quadrant, and local texture alone cannot.

    Args:
        shape: (channels, height, width); height and width even.
        width: filters; of a dense network a quarter of the hidden width.
        blocks: residual blocks of each network; a dense one has none.
        turns: number of times around.
        dense: use linear layers instead of convolutions.
    """

    def __init__(
        self, shape: tuple[int, ...], width: int = 32, blocks: int = 2, turns: int = 2, dense: bool = False
    ) -> None:
        super().__init__()
        if shape[1] % 2 or shape[2] % 2:
            raise ValueError(f"the cycle mask needs images of even height and width, given {shape}")
        self.shape = tuple(shape)
        part = (shape[0], shape[1] // 2, shape[2] // 2)
        self.couplings = nn.ModuleList(
            Coupling(
                DenseScaleShiftNet(part, 4 * width) if dense else ScaleShiftNet(shape[0], shape[0], width, blocks),
                shape[0],
            )
            for _ in range(4 * turns)
        )

    def split(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the quadrants of the logits."""
        y, total = logit(x)
        h = y.shape[-2] // 2
        w = y.shape[-1] // 2
        return [y[..., :h, :w], y[..., :h, w:], y[..., h:, w:], y[..., h:, :w]], total

    def join(self, parts: list[Tensor]) -> Tensor:
        """Return the quadrants as one image."""
        return torch.cat((torch.cat((parts[0], parts[1]), -1), torch.cat((parts[3], parts[2]), -1)), -2)


def build_flow(name: str, shape: tuple[int, ...], width: int = 32, blocks: int = 2, dense: bool = False) -> Flow:
    """Return a flow by name: affine and tabular for vectors, cycle for images; only cycle may be dense.

    Raises:
        ValueError: no such flow, or one for samples of another kind.
    """
    if name == "cycle":
        if len(shape) != 3:
            raise ValueError(f"flow {name!r} is for images, and a sample has shape {shape}: use affine or tabular")
        return CycleRealNVP(shape, width, blocks, dense=dense)
    if name == "affine":
        return AffineFlow(math.prod(shape))
    if name == "tabular":
        return TabularRealNVP(math.prod(shape), width=4 * width)
    raise ValueError(f"no flow {name!r}; there are affine, tabular, cycle")
