"""Two views of each image of a batch on a GPU, in as few launches as torch's operations allow.

Draws and views are those of `shoal.data.views.augment.two_views`, in the same order from the same generator, up to
rounding.
On a GPU a launch costs more than its computation on small batches: one launch makes all draws of a batch, another all
numbers that follow linearly from them.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.data.views.augment import Recipe, blurred, turn_hue

GREY = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the grey of a colour (ITU-R BT.601)."""


class DeviceViews:
    """Views by one recipe. Everything but images and draws lies on the device from the beginning.

    Args:
        recipe: of the views.
        shape: of one image, (channels, height, width).
        device: the device of images and generators.
    """

    def __init__(self, recipe: Recipe, shape: tuple[int, ...], device: torch.device) -> None:
        channels, height, width = shape
        self.recipe = recipe
        self.colour = channels == 3
        self.size = (height, width)
        rows = _rows(recipe, self.colour)
        self.row = {name: number for number, (name, _, _) in enumerate(rows)}
        self.low = torch.tensor([[low] for _, low, _ in rows], device=device)
        self.span = torch.tensor([[high - low] for _, low, high in rows], device=device)
        self.signs = torch.tensor([[1.0], [-1.0]], device=device)
        self.aspects = torch.tensor([[height / width], [width / height]], device=device)
        self.phases = torch.tensor([[math.pi / 2], [0.0]], device=device)
        self.upright = torch.tensor([[1.0], [0.0]], device=device)
        self.grey = torch.tensor(GREY, device=device).view(1, 3, 1, 1)
        x = torch.linspace(-1, 1, width, device=device) * ((width - 1) / width)
        y = torch.linspace(-1, 1, height, device=device) * ((height - 1) / height)
        places = torch.stack(torch.meshgrid(y, x, indexing="ij")[::-1], -1).view(-1, 2)
        self.base = torch.cat((places, torch.ones_like(places[:, :1])), 1)
        self.turned_against = -self.signs

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Draw views a, then views b, (2n, channels, height, width) in [0, 1], of images (n, ...) in [0, 1]."""
        x = torch.cat((x, x))
        if self.row:
            drawn = torch.rand(len(self.row), len(x), device=x.device, generator=generator)
            drawn = torch.addcmul(self.low, drawn, self.span)
            if "area" in self.row:
                x = self._resampled(x, drawn)
            if "jittered" in self.row:
                x = self._jittered(x, drawn)
            if "grey" in self.row:
                x = torch.where(self._of(drawn, "grey") < 0, self._grey(x), x)
        if self.recipe.blur:
            x = blurred(x, self.recipe, generator)
        return x

    def _of(self, drawn: Tensor, name: str) -> Tensor:
        """Return a drawn number of each image, (n, 1, 1, 1)."""
        return drawn[self.row[name]].view(-1, 1, 1, 1)

    def _grey(self, x: Tensor) -> Tensor:
        return (x * self.grey).sum(1, keepdim=True)

    def _resampled(self, x: Tensor, drawn: Tensor) -> Tensor:
        sides, shift = self._window(drawn)
        if self.recipe.rotate or self.recipe.shear:
            theta = torch.stack((*self._turned(sides, drawn), shift))
            grid = torch.bmm(self.base.expand(len(x), -1, -1), theta.permute(2, 0, 1))
        else:
            if self.recipe.flip:
                sides[0].copysign_(drawn[self.row["flip"]])
            grid = torch.addcmul(shift.T[:, None], self.base[:, :2], sides.T[:, None])
        return F.grid_sample(
            x, grid.view(len(x), *self.size, 2), mode="bilinear", padding_mode="zeros", align_corners=False
        )

    def _window(self, drawn: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sides of the part that each view shows, and how far its middle is from the image's, (2, n)."""
        recipe = self.recipe
        row = self.row
        if recipe.crop[0] < 1.0:
            sides = (drawn[row["aspect"]] * self.signs).exp_().mul_(drawn[row["area"]])
            if self.size[0] != self.size[1]:
                sides.mul_(self.aspects)
            sides.sqrt_().clamp_(max=1.0)
            place = drawn[row["right"] : row["right"] + 2]
            shift = torch.addcmul(place, sides, place, value=-1)
        else:
            sides = torch.ones_like(drawn[:2])
            shift = torch.zeros_like(sides)
        if recipe.move:
            at = row["wider"]
            sides = sides * drawn[at : at + 2].exp()
            shift = torch.add(shift, drawn[at + 2 : at + 4], alpha=2)
        return sides, shift

    def _turned(self, sides: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
        """Return the other two columns of affine matrices, (2, n): how far a pixel to the right, and one down, is."""
        recipe = self.recipe
        row = self.row
        turn = (drawn[row["turn"]] + self.phases).sin_() if recipe.rotate else self.upright
        # [[w cos, w sin], [h cos, h sin]]: the first and the last are of the horizontal, the others of the vertical.
        parts = (sides[:, None] * turn[None]).view(4, -1)
        across = parts[::3]
        along = parts[1:3] * self.turned_against
        if recipe.flip:
            across = torch.copysign(across, across * drawn[row["flip"]])
        if recipe.shear:
            along = torch.cat((along[:1] + drawn[row["shear"]], along[1:]))
        return across, along

    def _jittered(self, x: Tensor, drawn: Tensor) -> Tensor:
        y = (x * self._of(drawn, "bright")).clamp_(0, 1)
        y = torch.lerp(y.mean(dim=(1, 2, 3), keepdim=True), y, self._of(drawn, "contrast")).clamp_(0, 1)
        if "saturation" in self.row:
            y = torch.lerp(self._grey(y), y, self._of(drawn, "saturation")).clamp_(0, 1)
            if "hue" in self.row:
                y = turn_hue(y, drawn[self.row["hue"]])
        return torch.where(self._of(drawn, "jittered") < 0, y, x)


def _rows(recipe: Recipe, colour: bool) -> list[tuple[str, float, float]]:
    """Return the draws of a view in the order of `shoal.data.views.augment`: name, lowest and highest number.

    An event of probability p is drawn from -p to 1 - p, and happens where the number is below 0.
    """
    draws = _geometry_rows(recipe)
    if recipe.jitter_p and any(recipe.jitter):
        draws += _jitter_rows(recipe, colour)
    if recipe.grey and colour:
        draws.append(_event("grey", recipe.grey))
    return draws


def _geometry_rows(recipe: Recipe) -> list[tuple[str, float, float]]:
    """Return the draws of the crop, the flip and the affine map; none where the recipe has none of them."""
    move = recipe.move
    turn = math.radians(recipe.rotate)
    shear = recipe.shear
    if recipe.crop == (1.0, 1.0) and not (recipe.flip or turn or move or shear):
        return []
    draws = [("area", *recipe.crop), ("aspect", math.log(3 / 4), math.log(4 / 3))]
    draws += [("right", -1.0, 1.0), ("down", -1.0, 1.0)]
    if move:
        draws += [(name, -move, move) for name in ("wider", "higher", "moved right", "moved down")]
    draws += [_event("flip", recipe.flip), ("turn", -turn, turn)]
    if shear:
        draws.append(("shear", -shear, shear))
    return draws


def _jitter_rows(recipe: Recipe, colour: bool) -> list[tuple[str, float, float]]:
    """Return the draws of the colour jitter; saturation and hue only for images in colour."""
    names = ["bright", "contrast"]
    if colour and any(recipe.jitter[2:]):
        names.append("saturation")
    draws = [_event("jittered", recipe.jitter_p)]
    draws += [(name, max(0.0, 1 - s), 1 + s) for name, s in zip(names, recipe.jitter, strict=False)]
    if "saturation" in names and recipe.jitter[3]:
        draws.append(("hue", -recipe.jitter[3], recipe.jitter[3]))
    return draws


def _event(name: str, p: float) -> tuple[str, float, float]:
    """Return the draw of an event of probability p: it happens where the number is below 0."""
    return (name, -p, 1 - p)
