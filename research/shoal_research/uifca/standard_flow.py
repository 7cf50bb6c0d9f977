"""RealNVP with the masks of its paper, which the study of masks compares with the cycle mask."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.normalising_flows import Coupling, Flow, Logit, ScaleShiftNet, couplings_of


class Checkerboard(Coupling):
    """A coupling that reads every other pixel, and changes the others.

    Args:
        channels: of the image.
        width, blocks: as of `StandardRealNVP`.
        layer: its number; even and odd ones read other pixels.
    """

    def __init__(self, channels: int, width: int, blocks: int, layer: int) -> None:
        super().__init__(ScaleShiftNet(channels, channels, width, blocks), channels)
        self.layer = layer

    def scale_and_shift(self, read: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-scale and shift of the image's pixels; 0 for those that are read."""
        rows = torch.arange(read.shape[-2], device=read.device)[:, None]
        columns = torch.arange(read.shape[-1], device=read.device)
        mask = ((rows + columns + self.layer) % 2).to(read.dtype)
        log_scale, shift = super().scale_and_shift(read * mask)
        return log_scale * (1 - mask), shift * (1 - mask)


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
        for inside in (channels, 2 * channels):
            self.checker.append(nn.ModuleList(Checkerboard(inside, width, blocks, layer) for layer in range(3)))
            half = 2 * inside
            self.channel.append(
                nn.ModuleList(Coupling(ScaleShiftNet(half, half, width, blocks), half) for _ in range(3))
            )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return z (n, *shape) and the log-determinant (n,)."""
        y, total = self.logit(x)
        out = []
        for checker, channel in zip(self.checker, self.channel, strict=True):
            for coupling in couplings_of(checker):
                y, log_det = coupling(y, y)
                total = total + log_det
            halves = list(F.pixel_unshuffle(y, 2).chunk(2, 1))
            for layer, coupling in enumerate(couplings_of(channel)):
                read = layer % 2
                halves[1 - read], log_det = coupling(halves[read], halves[1 - read])
                total = total + log_det
            y = halves[0]
            out.append(halves[1].flatten(1))
        return torch.cat([*out, y.flatten(1)], 1).view(x.shape), total
