"""Augmentations: batched on the device, with one draw per sample from a given generator.

A recipe says what to draw; `augment` applies it to a batch. Crop, flip, rotation and scale are one resampling of the
batch. Colour follows kornia (`adjust_saturation_with_gray_subtraction`, `adjust_hue`) with a third of its operations:
on a GPU each operation is a launch, and for small batches the launches take most of the time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.core.setting import setting
from shoal.data.views.array_views import ARRAY_RECIPES, ArrayRecipe, array_view

BLUR_SIGMA = (0.1, 1.0)
"""The smallest and the largest sigma of a blur, pixels."""


@dataclass(frozen=True)
class Recipe:
    """The random changes of one view.

    Attributes:
        crop: smallest and largest share of the area that a random resized crop keeps (aspect 3/4 to 4/3).
        flip: probability of a horizontal flip.
        rotate: largest rotation, degrees, either way.
        jitter: brightness, contrast, saturation, hue strengths, in torchvision's meaning; on grey images only
            the first two act.
        jitter_p: probability that a view is jittered.
        grey: probability that a colour view loses its colour.
        blur: probability of a Gaussian blur.
        move: width and height are scaled by the exponential of at most this either way, and shifted by at most this
            share of them: the image itself lies in the middle of such views, which it does not among crops.
        shear: largest shift of the upper edge against the lower one, as a share of the width, either way.
    """

    crop: tuple[float, float] = (1.0, 1.0)
    flip: float = 0.0
    rotate: float = 0.0
    jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    jitter_p: float = 0.0
    grey: float = 0.0
    blur: float = 0.0
    move: float = 0.0
    shear: float = 0.0


RECIPES: dict[str, Recipe] = {
    "none": Recipe(),
    # Contrastive clustering's own for photographs: jitter (0.8, 0.8, 0.8, 0.2) at strength 0.5.
    "contrastive": Recipe((0.08, 1.0), 0.5, 0.0, (0.4, 0.4, 0.4, 0.1), 0.8, 0.2),
    # SimCLR's at full strength.
    "strong": Recipe((0.08, 1.0), 0.5, 0.0, (0.8, 0.8, 0.8, 0.2), 0.8, 0.2),
    # Glyphs must not be mirrored or cut to pieces.
    "digits": Recipe((0.3, 1.0), 0.0, 15.0, (0.4, 0.4, 0.0, 0.0), 0.8),
    "grey": Recipe((0.3, 1.0), 0.5, 0.0, (0.4, 0.4, 0.0, 0.0), 0.8),
    # A few pixels a side: small crops leave nothing to tell images apart by (chosen in docs/results/appendix.md).
    "small": Recipe((0.4, 1.0), 0.0, 15.0, (0.4, 0.4, 0.4, 0.1), 0.8),
    # Milder throughout: for features of small images, where clients are unlike.
    "gentle": Recipe((0.6, 1.0), 0.0, 10.0, (0.2, 0.2, 0.2, 0.05), 0.8),
    # Moved alone: to a density another brightness is another image.
    "moved": Recipe(rotate=15.0, move=0.1, shear=0.2),
}


@dataclass(frozen=True)
class AugmentSettings:
    """How views of an image are drawn."""

    recipe: str = setting(
        "auto",
        "recipe of random augmentations for a view; auto: chosen by image size, data set and method",
        choices=("auto", *RECIPES, *ARRAY_RECIPES),
    )


SMALL = 16
"""Largest side in pixels of images that have a recipe of their own, whatever they show."""


def is_small(shape: tuple[int, ...]) -> bool:
    """Return whether images of this shape (channels, height, width) are small."""
    return len(shape) == 3 and max(shape[1:]) <= SMALL


AnyRecipe = Recipe | ArrayRecipe


def choose_recipe(
    settings: AugmentSettings, name: str, shape: tuple[int, ...], auto: Recipe | None = None
) -> AnyRecipe:
    """Return the recipe of a run.

    Args:
        settings: of the user.
        name: of the data set.
        shape: of one image, vector or window.
        auto: the method's recipe of images where the user leaves the choice; None: by image size, then by data set.

    Raises:
        ValueError: there is no such recipe for data of this shape.
    """
    recipes: dict[str, AnyRecipe] = {**RECIPES}
    what = "images"
    if len(shape) < 3:
        recipes = {**ARRAY_RECIPES, "none": ArrayRecipe()}
        what = "vectors and windows"
    if settings.recipe in recipes:
        return recipes[settings.recipe]
    if settings.recipe != "auto":
        raise ValueError(f"augment.recipe is {settings.recipe!r}; of {what} there are auto, {', '.join(recipes)}")
    if len(shape) < 3:
        return recipes["columns" if len(shape) == 1 else "windows"]
    return auto or _recipe_of_set(name, shape)


def _recipe_of_set(name: str, shape: tuple[int, ...]) -> Recipe:
    if is_small(shape):
        return RECIPES["small"]
    if name.split("-")[0] in ("mnist", "digits"):
        return RECIPES["digits"]
    return RECIPES["contrastive" if shape[0] == 3 else "grey"]


def augment(x: Tensor, recipe: AnyRecipe, generator: torch.Generator) -> Tensor:
    """Draw one view of each image, vector or window.

    Args:
        x: images (n, channels, height, width) in [0, 1], vectors (n, columns) or windows (n, channels, length).
        recipe: of the view.
        generator: on the device of x; the only source of randomness.

    Returns:
        The views, of the shape of x; of images in [0, 1].
    """
    if isinstance(recipe, ArrayRecipe):
        return array_view(x, recipe, generator)
    draws = _Draws(x, generator)
    if recipe.crop != (1.0, 1.0) or recipe.flip or recipe.rotate or recipe.move or recipe.shear:
        x = _resample(x, recipe, draws)
    if recipe.jitter_p and any(recipe.jitter):
        x = _jitter(x, recipe, draws)
    if recipe.grey and x.shape[1] == 3:
        chosen = draws.chance(recipe.grey)
        x = torch.where(chosen.view(-1, 1, 1, 1), grey_of(x), x)
    if recipe.blur:
        x = _blur(x, recipe, draws)
    return x


def blurred(x: Tensor, recipe: Recipe, generator: torch.Generator) -> Tensor:
    """Blur some of the images (n, channels, height, width), which is the last step of a view."""
    return _blur(x, recipe, _Draws(x, generator))


def two_views(x: Tensor, recipe: AnyRecipe, generator: torch.Generator) -> Tensor:
    """Draw views a, then views b, of each sample: (2n, ...)."""
    return augment(torch.cat((x, x)), recipe, generator)


class _Draws:
    """Per-sample draws of one batch."""

    def __init__(self, x: Tensor, generator: torch.Generator) -> None:
        self.rand = partial(torch.rand, len(x), device=x.device, generator=generator)

    def uniform(self, low: float, high: float) -> Tensor:
        return self.rand() * (high - low) + low

    def chance(self, p: float) -> Tensor:
        return self.rand() < p


def _resample(x: Tensor, recipe: Recipe, draws: _Draws) -> Tensor:
    area = draws.uniform(*recipe.crop)
    aspect = draws.uniform(math.log(3 / 4), math.log(4 / 3)).exp()
    cropped = recipe.crop[0] < 1.0
    height, width = x.shape[-2:]
    wide = torch.ones_like(area)
    high = torch.ones_like(area)
    if cropped:
        # Sides of the crop as shares of the image; a crop that would reach out of the image is cut to it.
        wide = (area * aspect * height / width).sqrt().clamp(max=1.0)
        high = (area / aspect * width / height).sqrt().clamp(max=1.0)
    shift_x = (1 - wide) * draws.uniform(-1.0, 1.0)
    shift_y = (1 - high) * draws.uniform(-1.0, 1.0)
    if recipe.move:
        wide = wide * draws.uniform(-recipe.move, recipe.move).exp()
        high = high * draws.uniform(-recipe.move, recipe.move).exp()
        # Coordinates go from -1 to 1: a side is 2 long.
        shift_x = shift_x + 2 * draws.uniform(-recipe.move, recipe.move)
        shift_y = shift_y + 2 * draws.uniform(-recipe.move, recipe.move)
    mirror = 1.0 - 2.0 * draws.chance(recipe.flip).float()
    turn = draws.uniform(-recipe.rotate, recipe.rotate) * (math.pi / 180)
    across = -wide * turn.sin()
    if recipe.shear:
        across = across + draws.uniform(-recipe.shear, recipe.shear)
    theta = torch.stack(
        (
            torch.stack((wide * turn.cos() * mirror, across, shift_x), 1),
            torch.stack((high * turn.sin() * mirror, high * turn.cos(), shift_y), 1),
        ),
        dim=1,
    )
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def _jitter(x: Tensor, recipe: Recipe, draws: _Draws) -> Tensor:
    chosen = draws.chance(recipe.jitter_p)
    brightness, contrast, saturation, hue = recipe.jitter
    bright = draws.uniform(max(0.0, 1 - brightness), 1 + brightness)
    contrasted = draws.uniform(max(0.0, 1 - contrast), 1 + contrast)
    y = (x * bright.view(-1, 1, 1, 1)).clamp_(0, 1)
    mean = y.mean(dim=(1, 2, 3), keepdim=True)
    y = ((y - mean) * contrasted.view(-1, 1, 1, 1) + mean).clamp_(0, 1)
    if x.shape[1] == 3 and (saturation or hue):
        saturated = draws.uniform(max(0.0, 1 - saturation), 1 + saturation)
        y = torch.lerp(grey_of(y), y, saturated.view(-1, 1, 1, 1)).clamp_(0, 1)
        if hue:
            y = turn_hue(y, draws.uniform(-hue, hue))
    return torch.where(chosen.view(-1, 1, 1, 1), y, x)


def grey_of(x: Tensor) -> Tensor:
    """Return the grey image of each colour image (ITU-R BT.601): (n, 3, height, width) to (n, 1, height, width)."""
    red, green, blue = x.split(1, dim=1)
    # Plain numbers: a tensor made of them would be copied to the device, which waits.
    result: Tensor = (red * 0.299).add_(green, alpha=0.587).add_(blue, alpha=0.114)
    return result


def turn_hue(x: Tensor, turns: Tensor) -> Tensor:
    """Turn the hue of colour images in the HSV colour model; saturation and value stay.

    One formula converts to HSV and back. A colour with the largest channel v, the smallest u, and the hue h in sixths
    of the colour circle has the channels u + (v - u) clip(|(h + m mod 6) - 2| - 1, 0, 1), where m is 5 for red, 3 for
    green and 1 for blue (A. R. Smith, Color gamut transform pairs, SIGGRAPH 1978, in the form without cases). Up to
    rounding this is `kornia.enhance.adjust_hue`.

    Args:
        x: (n, 3, height, width) in [0, 1].
        turns: (n,), the share of the whole colour circle by which each image's hue is turned.

    Returns:
        New images, (n, 3, height, width) in [0, 1].
    """
    low = x.amin(1, keepdim=True)
    high = x.amax(1, keepdim=True)
    span = high - low
    red, green, blue = x.split(1, dim=1)
    of_green_or_blue = torch.where(
        green == high, torch.add(blue - red, span, alpha=2), torch.add(red - green, span, alpha=4)
    )
    # Grey has no hue: its span is 0, so that any hue will do.
    hue = torch.where(red == high, green - blue, of_green_or_blue).div_(span.clamp(min=1e-30))
    # A range is made on the device; a tensor made of numbers would be copied to it, which waits.
    offsets = torch.arange(5, 0, -2, dtype=x.dtype, device=x.device).view(1, 3, 1, 1)
    place = (hue + (offsets + 6 * turns.view(-1, 1, 1, 1))).remainder_(6)
    return torch.addcmul(low, span, place.sub_(2).abs_().sub_(1).clamp_(0, 1))


def _blur(x: Tensor, recipe: Recipe, draws: _Draws) -> Tensor:
    from kornia.filters import filter2d_separable, get_gaussian_kernel1d

    chosen = draws.chance(recipe.blur)
    sigma = draws.uniform(*BLUR_SIGMA)
    # An odd kernel of about a tenth of the side, as in SimCLR.
    size = max(3, min(x.shape[-2:]) // 10 * 2 + 1)
    # `gaussian_blur2d` without its check of sigma, which waits for the device.
    kernel = get_gaussian_kernel1d(size, sigma[:, None])
    blurred = filter2d_separable(x, kernel, kernel, border_type="reflect")
    return torch.where(chosen.view(-1, 1, 1, 1), blurred, x)


def normalise(x: Tensor) -> Tensor:
    """Scale images from [0, 1] to about unit scale by constants: no statistic of the data is needed."""
    # (x - 0.5) / 0.25 in one pass over x, with the same bits: the factor is a power of two.
    return torch.rsub(x, -2.0, alpha=-4.0)


def unnormalise(x: Tensor) -> Tensor:
    """Return normalised images as they were, in [0, 1]."""
    return x * 0.25 + 0.5
