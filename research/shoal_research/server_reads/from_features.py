"""What a server reads of images from the weights that a client sends after steps of SGD, in the first round.

The change of the linear layer after the convolutions is a sum of products with the features that enter it, less their
mean, which BatchNorm takes away: it spans the centred features of the views of all steps. In the first step the
convolutions are those that the server sent, and the seed tells crops and colours. So images are sought whose views in
this step have features in the span, and where it is the only one give BatchNorm's statistics, by least squares within
the range of pixels, of several starts. A pixel that no view of it shows stays open.

Symbols in shapes: n images, p pixels of one, v views, d features, r residuals.
"""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import torch
from scipy.optimize import least_squares
from torch import Tensor, nn

from shoal_research.server_reads.from_weights import FITS, MOMENTUM, Sender, kept_share, norm_inputs

CONVOLUTIONS = "encoder.layers"
FIRST_LINEAR = "encoder.out.0"
"""Of `SmallConv`: the layers on images, and the linear layer after them, which has no bias."""
DIRECTIONS = 60
"""Drawn among those outside the span; more cost time, and tell little more."""
STARTS = 3
MOST_STEPS = 500
"""Of least squares from one start."""
MOST_PIXELS_OF_A_CLIENT = 256
"""Of more the search takes hours."""
RANGE = 255.0
"""Of a stored pixel."""


class FeatureReading:
    """The attack on one client.

    Args:
        sender: the client.
        shape: of its images (n, channels, height, width).
    """

    def __init__(self, sender: Sender, shape: tuple[int, ...]) -> None:
        self._sender = sender
        self._shape = shape
        steps = sender.method.local_steps(sender.message, sender.client)
        self._layers = deepcopy(steps.network.get_submodule(CONVOLUTIONS)).double().train()
        norms = [f"{CONVOLUTIONS}.{name}" for name, part in self._layers.named_modules() if is_norm(part)]
        names = [f"{norm}.running_{part}" for norm in norms for part in ("mean", "var")]
        # The mean and variance of the one step, of which the statistics got a share.
        self._told = torch.cat(
            [(sender.sent[n] - (1 - MOMENTUM) * sender.message.tensors[n].double()) / MOMENTUM for n in names]
        )
        self._steps = len(list(steps.batches))
        self._outside = directions_outside(sender, self._steps, self._steps * (2 * shape[0] - 1))

    @staticmethod
    def possible(sender: Sender) -> bool:
        """Return whether the network has such layers, steps are SGD, the views fewer than its units, and images few."""
        weight = sender.sent.get(f"{FIRST_LINEAR}.weight")
        if weight is None or f"{CONVOLUTIONS}.1.running_mean" not in sender.sent:
            return False
        if sender.client.train.raw().numel() > MOST_PIXELS_OF_A_CLIENT:
            return False
        steps = len(list(sender.method.local_steps(sender.message, sender.client).batches))
        rank = steps * (2 * len(sender.client.train) - 1)
        return sender.method.context.local.optimiser == "sgd" and rank < min(weight.shape)

    def read(self, seed: int) -> np.ndarray:
        """Return the images (n, p) that fit best, of several starts, as stored: whole numbers."""
        generator = np.random.default_rng(seed)
        fits = []
        for _ in range(STARTS):
            start = generator.uniform(0, 1, int(np.prod(self._shape)))
            fits.append(least_squares(self._value, start, self._slopes, bounds=(-1e-9, 1 + 1e-9), max_nfev=MOST_STEPS))
            if fits[-1].cost < FITS:
                break
        best = min(fits, key=lambda fit: float(fit.cost))
        found: np.ndarray = (RANGE * best.x).round().reshape(self._shape[0], -1)
        return found

    def residuals(self, flat: Tensor) -> Tensor:
        """Return how far images in [0, 1] are from the span and the statistics, (r,)."""
        views = self._sender.views(RANGE * flat.reshape(self._shape))[0]
        with norm_inputs(self._layers) as inputs:
            features = self._layers(views.double()).flatten(1)
        centred = features - features.mean(0)
        off_span: Tensor = (centred @ self._outside / centred.norm(dim=1, keepdim=True)).flatten()
        if self._steps > 1:
            return off_span
        seen = [(x.mean((0, 2, 3)), x.transpose(0, 1).flatten(1).var(1)) for x in inputs.values()]
        statistics = torch.cat([part for parts in seen for part in parts])
        return torch.cat((off_span, (statistics - self._told) / self._told.abs().clamp_min(1e-2)))

    def _value(self, flat: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            value: np.ndarray = self.residuals(torch.as_tensor(flat)).numpy()
        return value

    def _slopes(self, flat: np.ndarray) -> np.ndarray:
        slopes = torch.autograd.functional.jacobian(self.residuals, torch.as_tensor(flat), vectorize=True)
        assert isinstance(slopes, Tensor)
        return slopes.numpy()


def is_norm(part: nn.Module) -> bool:
    """Return whether a layer normalises the channels of a batch of images."""
    return isinstance(part, nn.BatchNorm2d)


def directions_outside(sender: Sender, steps: int, rank: int) -> Tensor:
    """Return drawn directions (d, at most `DIRECTIONS`) to which the centred features of all views are orthogonal.

    Args:
        sender: the client.
        steps: number of steps.
        rank: dimensions of the span.
    """
    name = f"{FIRST_LINEAR}.weight"
    change = sender.sent[name] - kept_share(sender, steps) * sender.message.tensors[name].double()
    outside = torch.linalg.svd(change, full_matrices=True)[2][rank:].T
    drawn = torch.randn(outside.shape[1], DIRECTIONS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    directions: Tensor = outside @ torch.linalg.qr(drawn)[0]
    return directions
