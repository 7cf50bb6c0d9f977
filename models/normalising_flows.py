"""Normalising flows: invertible maps to a standard normal, with exact log-densities.

`log_prob` returns natural-log densities of the inputs; `sample` inverts the map. Flows of images take values in
[0, 256) (dequantised bytes), whose densities `bits_per_dimension` converts.
"""

from __future__ import annotations

import math
from abc import ABC
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LOG_2PI = math.log(2 * math.pi)


def standard_normal(z: Tensor) -> Tensor:
    """Return the log-density of N(0, I) at z (n, ...), summed over all but the first dimension: (n,)."""
    flat = z.flatten(1)
    return -0.5 * (flat.square().sum(1) + flat.shape[1] * LOG_2PI)


def bits_per_dimension(log_prob: Tensor, dimensions: int) -> Tensor:
    """Return negative log-densities of bytes in [0, 256) as bits per dimension."""
    return -log_prob / (dimensions * math.log(2))


class Flow(nn.Module, ABC):
    """An invertible map x -> z with a standard normal prior.

    Subclasses implement `forward(x) -> (z, log |det dz/dx|)` and `inverse(z) -> x`; `shape` is one sample's shape.
    """

    shape: tuple[int, ...]

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the log-density of each sample, (n,)."""
        z, log_det = self(x)
        result: Tensor = standard_normal(z) + log_det
        return result

    def inverse(self, z: Tensor) -> Tensor:
        """Return x of z."""
        raise NotImplementedError

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw n samples (n, *shape)."""
        device = next(self.parameters()).device
        return self.inverse(torch.randn((n, *self.shape), generator=generator, device=generator.device).to(device))


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

    def inverse(self, z: Tensor) -> Tensor:
        """Return A^-1 z + b."""
        result: Tensor = torch.linalg.solve(self.matrix, z.T).T + self.shift
        return result


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

    def scale_and_shift(self, read: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-scale and shift of the changed part."""
        raw, shift = self.net(read).chunk(2, dim=1)
        rescale = self.rescale.view(1, -1, *[1] * (raw.dim() - 2))
        return torch.tanh(raw) * rescale, shift

    def forward(self, read: Tensor, changed: Tensor) -> tuple[Tensor, Tensor]:
        """Return the changed part after the coupling, and its log-determinant (n,)."""
        log_scale, shift = self.scale_and_shift(read)
        return changed * log_scale.exp() + shift, log_scale.flatten(1).sum(1)

    def inverse(self, read: Tensor, changed: Tensor) -> Tensor:
        """Undo `forward`."""
        log_scale, shift = self.scale_and_shift(read)
        return (changed - shift) * (-log_scale).exp()


class TabularRealNVP(Flow):
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
            read = sizes[layer % 2]
            changed = sizes[1 - layer % 2]
            last = nn.Linear(width, 2 * changed)
            # The coupling begins as the identity, so that the first steps work at the data's own scale.
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
            net = nn.Sequential(nn.Linear(read, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), last)
            self.couplings.append(Coupling(net, changed))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return z and the log-determinant (n,)."""
        parts = [x[:, : self.cut], x[:, self.cut :]]
        total = x.new_zeros(len(x))
        for layer, coupling in enumerate(_couplings(self.couplings)):
            parts[1 - layer % 2], log_det = coupling(parts[layer % 2], parts[1 - layer % 2])
            total = total + log_det
        return torch.cat(parts, 1), total

    def inverse(self, z: Tensor) -> Tensor:
        """Return x of z."""
        parts = [z[:, : self.cut], z[:, self.cut :]]
        for layer, coupling in reversed(list(enumerate(_couplings(self.couplings)))):
            parts[1 - layer % 2] = coupling.inverse(parts[layer % 2], parts[1 - layer % 2])
        return torch.cat(parts, 1)


def _couplings(modules: nn.Module) -> list[Coupling]:
    return [module for module in modules.children() if isinstance(module, Coupling)]


class Logit(nn.Module):
    """A map of bytes in [0, 256) to the real line: the logit of a value squeezed into [margin, 1 - margin]."""

    def __init__(self, margin: float = 0.05) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values, and the log-determinant (n,)."""
        p = self.margin + (1 - 2 * self.margin) * x / 256
        log_det = math.log((1 - 2 * self.margin) / 256) - p.log() - (1 - p).log()
        return p.log() - (1 - p).log(), log_det.flatten(1).sum(1)

    def inverse(self, y: Tensor) -> Tensor:
        """Undo `forward`; clamp values outside [0, 256)."""
        return ((torch.sigmoid(y) - self.margin) / (1 - 2 * self.margin) * 256).clamp(0, 255.999)


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
        size = math.prod(shape)
        last = nn.Linear(width, 2 * size)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.layers = nn.Sequential(nn.Linear(size, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), last)

    def forward(self, x: Tensor) -> Tensor:
        """Return scales, then shifts, (n, 2 * channels, height, width)."""
        channels, height, width = self.shape
        return cast(Tensor, self.layers(x.flatten(1))).view(-1, 2 * channels, height, width)


class CycleRealNVP(Flow):
    """RealNVP with the cycle mask: each coupling reads one quadrant of the image and changes only the next.

    The quadrants are 0 top-left, 1 top-right, 2 bottom-right, 3 bottom-left; coupling l reads quadrant l mod 4 and
    changes the next one, twice around. So only its neighbour can explain a quadrant, and local texture alone cannot.

    Args:
        shape: (channels, height, width); height and width even.
        width: filters; of a dense network a quarter of the hidden width.
        blocks: residual blocks of each network; a dense one has none.
        margin: of `Logit`.
        turns: number of times around.
        dense: use linear layers instead of convolutions.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        width: int = 32,
        blocks: int = 2,
        margin: float = 0.05,
        turns: int = 2,
        dense: bool = False,
    ) -> None:
        super().__init__()
        if shape[1] % 2 or shape[2] % 2:
            raise ValueError(f"the cycle mask needs images of even height and width, given {shape}")
        self.shape = tuple(shape)
        self.logit = Logit(margin)
        part = (shape[0], shape[1] // 2, shape[2] // 2)
        self.couplings = nn.ModuleList(
            Coupling(
                DenseScaleShiftNet(part, 4 * width) if dense else ScaleShiftNet(shape[0], shape[0], width, blocks),
                shape[0],
            )
            for _ in range(4 * turns)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return z and the log-determinant (n,)."""
        y, total = self.logit(x)
        parts = _quadrants(y)
        for layer, coupling in enumerate(_couplings(self.couplings)):
            read = layer % 4
            changed = (read + 1) % 4
            parts[changed], log_det = coupling(parts[read], parts[changed])
            total = total + log_det
        return _joined(parts), total

    def inverse(self, z: Tensor) -> Tensor:
        """Return x of z."""
        parts = _quadrants(z)
        for layer, coupling in reversed(list(enumerate(_couplings(self.couplings)))):
            read = layer % 4
            changed = (read + 1) % 4
            parts[changed] = coupling.inverse(parts[read], parts[changed])
        return self.logit.inverse(_joined(parts))


def _quadrants(x: Tensor) -> list[Tensor]:
    h = x.shape[-2] // 2
    w = x.shape[-1] // 2
    return [x[..., :h, :w], x[..., :h, w:], x[..., h:, w:], x[..., h:, :w]]


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat((torch.cat((parts[0], parts[1]), -1), torch.cat((parts[3], parts[2]), -1)), -2)


class StandardRealNVP(Flow):
    """RealNVP as published: three checkerboard couplings, squeeze, three channel couplings; half factored out; again.

    Args:
        shape: (channels, height, width); height and width divisible by 4.
        width: filters.
        blocks: residual blocks of each network.
        margin: of `Logit`.
    """

    def __init__(self, shape: tuple[int, ...], width: int = 32, blocks: int = 2, margin: float = 0.05) -> None:
        super().__init__()
        channels, height, wide = shape
        if height % 4 or wide % 4:
            raise ValueError(f"two scales need images of height and width divisible by 4, given {shape}")
        self.shape = tuple(shape)
        self.logit = Logit(margin)
        self.checker = nn.ModuleList()
        self.channel = nn.ModuleList()
        for scale in range(2):
            inside = channels * 2**scale
            self.checker.append(
                nn.ModuleList(Coupling(ScaleShiftNet(inside, inside, width, blocks), inside) for _ in range(3))
            )
            half = inside * 2
            self.channel.append(
                nn.ModuleList(Coupling(ScaleShiftNet(half, half, width, blocks), half) for _ in range(3))
            )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return z (n, *shape) and the log-determinant (n,)."""
        y, total = self.logit(x)
        out = []
        for scale in range(2):
            for layer, coupling in enumerate(_couplings(self.checker[scale])):
                log_scale, shift = _checker_scale_and_shift(coupling, y, layer)
                y = y * log_scale.exp() + shift
                total = total + log_scale.flatten(1).sum(1)
            y = F.pixel_unshuffle(y, 2)
            halves = list(y.chunk(2, 1))
            for layer, coupling in enumerate(_couplings(self.channel[scale])):
                read = layer % 2
                halves[1 - read], log_det = coupling(halves[read], halves[1 - read])
                total = total + log_det
            out.append(halves[1].flatten(1))
            y = halves[0]
        out.append(y.flatten(1))
        return torch.cat(out, 1).view(x.shape), total

    def inverse(self, z: Tensor) -> Tensor:
        """Return x of z."""
        c, h, w = self.shape
        flat = z.flatten(1)
        sizes = [c * h * w // 2, c * h * w // 4, c * h * w // 4]
        first, second, y = flat.split(sizes, 1)
        shapes = [(2 * c, h // 2, w // 2), (4 * c, h // 4, w // 4)]
        y = y.view(-1, *shapes[1])
        for scale, other in ((1, second), (0, first)):
            halves = [y.view(-1, *shapes[scale]), other.view(-1, *shapes[scale])]
            for layer, coupling in reversed(list(enumerate(_couplings(self.channel[scale])))):
                read = layer % 2
                halves[1 - read] = coupling.inverse(halves[read], halves[1 - read])
            y = F.pixel_shuffle(torch.cat(halves, 1), 2)
            for layer, coupling in reversed(list(enumerate(_couplings(self.checker[scale])))):
                log_scale, shift = _checker_scale_and_shift(coupling, y, layer)
                y = (y - shift) * (-log_scale).exp()
        return self.logit.inverse(y)


def _checker_scale_and_shift(coupling: Coupling, y: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    """Return log-scale and shift of the pixels that a layer changes, from those that it reads; 0 for the others."""
    mask = _checkerboard(y, layer)
    log_scale, shift = coupling.scale_and_shift(y * mask)
    return log_scale * (1 - mask), shift * (1 - mask)


def _checkerboard(x: Tensor, layer: int) -> Tensor:
    """Return 1 where a pixel is read, otherwise 0, (1, 1, height, width)."""
    rows = torch.arange(x.shape[-2], device=x.device)[:, None]
    columns = torch.arange(x.shape[-1], device=x.device)[None, :]
    return ((rows + columns + layer) % 2).to(x.dtype)[None, None]


def build_flow(
    name: str, shape: tuple[int, ...], width: int = 32, blocks: int = 2, margin: float = 0.05, dense: bool = False
) -> Flow:
    """Return a flow by name: affine and tabular for vectors, cycle and standard for images; only cycle may be dense.

    Raises:
        ValueError: no such flow, or one for samples of another kind.
    """
    if dense and name != "cycle":
        raise ValueError(f"flow {name!r} has no networks of linear layers to choose: layers dense is of cycle")
    if name in ("affine", "tabular"):
        dimension = math.prod(shape)
        return AffineFlow(dimension) if name == "affine" else TabularRealNVP(dimension, width=4 * width)
    if name in ("cycle", "standard"):
        if len(shape) != 3:
            raise ValueError(f"flow {name!r} is for images, and a sample has shape {shape}: use affine or tabular")
        if name == "cycle":
            return CycleRealNVP(shape, width, blocks, margin, dense=dense)
        return StandardRealNVP(shape, width, blocks, margin)
    raise ValueError(f"no flow {name!r}; there are affine, tabular, cycle, standard")
