"""RealNVP with the masks of its paper, which the study of masks compares with the cycle mask."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.normalising_flows import Coupling, Flow, Logit, ScaleShiftNet, couplings_of


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
            for layer, coupling in enumerate(couplings_of(self.checker[scale])):
                log_scale, shift = _checker_scale_and_shift(coupling, y, layer)
                y = y * log_scale.exp() + shift
                total = total + log_scale.flatten(1).sum(1)
            y = F.pixel_unshuffle(y, 2)
            halves = list(y.chunk(2, 1))
            for layer, coupling in enumerate(couplings_of(self.channel[scale])):
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
            for layer, coupling in reversed(list(enumerate(couplings_of(self.channel[scale])))):
                read = layer % 2
                halves[1 - read] = coupling.inverse(halves[read], halves[1 - read])
            y = F.pixel_shuffle(torch.cat(halves, 1), 2)
            for layer, coupling in reversed(list(enumerate(couplings_of(self.checker[scale])))):
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
