"""Random views of vectors and of windows of series, beside those of images in `shoal.data.views.augment`.

Everything is measured in the spread of the batch, so that columns and channels may have units of their own, and nothing
waits for the device.

Symbols in shapes: n samples, d columns, c channels, l times.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ArrayRecipe:
    """The random changes of one view of a vector or of a window.

    Attributes:
        jitter: standard deviation of the noise that is added, as a multiple of that of the column or channel.
        mask: of a vector the probability that a value is replaced by another sample's in the same column (feature
            corruption; Bahri et al. 2022); of a window the share of its times, in one piece, that become its mean.
        scale: a window's deviations from its mean are multiplied by the exponential of at most this, either way.
        crop: smallest share of a window's times that is kept. It is moved to a random place, and the rest becomes the
            window's mean; time is not stretched.
    """

    jitter: float = 0.0
    mask: float = 0.0
    scale: float = 0.0
    crop: float = 1.0


ARRAY_RECIPES: dict[str, ArrayRecipe] = {
    "columns": ArrayRecipe(jitter=0.1, mask=0.3),
    "windows": ArrayRecipe(jitter=0.1, mask=0.1, scale=0.3, crop=0.7),
}
"""Recipes by name: of vectors, and of windows."""


def array_view(x: Tensor, recipe: ArrayRecipe, generator: torch.Generator) -> Tensor:
    """Draw one view of each vector (n, d) or window (n, c, l), float32.

    Args:
        x: the samples; a batch of them, since the spread and other samples' values come from it.
        recipe: of the views.
        generator: on the device of x; the only source of randomness.
    """
    return _view_of_vectors(x, recipe, generator) if x.dim() == 2 else _view_of_windows(x, recipe, generator)


def _view_of_vectors(x: Tensor, recipe: ArrayRecipe, generator: torch.Generator) -> Tensor:
    view = x
    if recipe.mask:
        others = torch.randint(len(x), x.shape, device=x.device, generator=generator)
        chosen = torch.rand(x.shape, device=x.device, generator=generator) < recipe.mask
        view = torch.where(chosen, x.gather(0, others), view)
    if recipe.jitter:
        spread = x.std(0, correction=0, keepdim=True)
        view = view + _noise(x, generator) * spread * recipe.jitter
    return view


def _view_of_windows(x: Tensor, recipe: ArrayRecipe, generator: torch.Generator) -> Tensor:
    mean = x.mean(2, keepdim=True)
    view = x
    if recipe.crop < 1:
        view = _cropped(x, mean, recipe.crop, generator)
    if recipe.scale:
        power = _uniform((len(x), x.shape[1], 1), x, generator) * 2 - 1
        view = mean + (view - mean) * (power * recipe.scale).exp()
    if recipe.jitter:
        spread = x.std((0, 2), correction=0, keepdim=True)
        view = view + _noise(x, generator) * spread * recipe.jitter
    if recipe.mask:
        length = x.shape[2]
        width = recipe.mask * length
        begin = _uniform((len(x), 1, 1), x, generator) * (length - width)
        time = torch.arange(length, device=x.device)
        view = torch.where((time >= begin) & (time < begin + width), mean, view)
    return view


def _cropped(x: Tensor, mean: Tensor, smallest: float, generator: torch.Generator) -> Tensor:
    """Keep a piece of each window (n, c, l), at another place; its mean (n, c, 1) takes the other times."""
    length = x.shape[2]
    drawn = _uniform((3, len(x), 1), x, generator)
    kept = ((drawn[0] * (1 - smallest) + smallest) * length).round()
    begin = (drawn[1] * (length - kept + 1)).floor()
    place = (drawn[2] * (length - kept + 1)).floor()
    time = torch.arange(length, device=x.device)
    inside = (time >= place) & (time < place + kept)
    source = (time - place + begin).clamp_(0, length - 1).long()
    moved = x.gather(2, source[:, None].expand_as(x))
    return torch.where(inside[:, None], moved, mean)


def _uniform(shape: tuple[int, ...], x: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(shape, device=x.device, generator=generator)


def _noise(x: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(x.shape, device=x.device, generator=generator)
