"""Colour of views is kornia's, image for image, from the same draws and in a fraction of its operations."""

from __future__ import annotations

import math
from typing import Any

import kornia.enhance
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from shoal.data.views.augment import Recipe, augment, grey_of, turn_hue

CLOSE = 1e-5
CORNERS = torch.cartesian_prod(*[torch.tensor([0.0, 0.5, 1.0])] * 3)
"""Black, white, greys, and colours of full saturation with every order of the channels, (27, 3)."""
TURNS = (-0.5, -1 / 3, -1 / 6, -1e-7, 0.0, 1e-7, 0.1, 1 / 6, 0.25, 1 / 3, 0.5)


def random(seed: int, *shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


IMAGES = {
    "random": random(0, 11, 3, 24, 24),
    "grey": random(1, 11, 1, 24, 24).expand(-1, 3, -1, -1).contiguous(),
    "nearly grey": random(2, 11, 1, 24, 24) * 0.9 + random(3, 11, 3, 24, 24) * 1e-6,
    "dark": random(4, 11, 3, 24, 24) * 1e-7,
    "bright": 1 - random(5, 11, 3, 24, 24) * 1e-6,
    "saturated": (random(6, 11, 3, 24, 24) * 1.6 - 0.3).clamp(0, 1),
    "corners": CORNERS.T.reshape(1, 3, 9, 3).expand(11, -1, -1, -1).contiguous(),
    "bytes": (random(7, 11, 3, 24, 24) * 255).floor() / 255,
}


@pytest.mark.parametrize("name", IMAGES)
def test_hue_is_turned_as_kornia_turns_it(name: str) -> None:
    x, turns = IMAGES[name], torch.tensor(TURNS)
    before = x.clone()
    found = turn_hue(x, turns)
    assert (found - kornia.enhance.adjust_hue(x, turns * 2 * math.pi)).abs().max() <= CLOSE
    assert found.min() >= 0
    assert found.max() <= 1
    assert torch.equal(x, before)


def test_hue_of_known_colours() -> None:
    red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1).expand(4, -1, -1, -1)
    found = turn_hue(red, torch.tensor([0.0, 1 / 6, 1 / 3, -1 / 3]))[:, :, 0, 0]
    expected = torch.tensor([[1.0, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 1]])  # red, yellow, green, blue
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_grey_counts_the_channels_by_how_bright_they_look() -> None:
    x = torch.eye(3).view(3, 3, 1, 1)
    assert grey_of(x).flatten().tolist() == pytest.approx([0.299, 0.587, 0.114])


RECIPES = {
    "contrastive": Recipe(jitter=(0.4, 0.4, 0.4, 0.1), jitter_p=0.8, grey=0.2),
    "strong": Recipe(jitter=(0.8, 0.8, 0.8, 0.2), jitter_p=0.8, grey=0.2),
    "beyond": Recipe(jitter=(1.5, 1.5, 1.5, 0.5), jitter_p=1.0, grey=0.5),
    "saturation alone": Recipe(jitter=(0.0, 0.0, 1.0, 0.0), jitter_p=1.0),
    "hue alone": Recipe(jitter=(0.0, 0.0, 0.0, 0.5), jitter_p=1.0),
}


def by_kornia(x: Tensor, recipe: Recipe, generator: torch.Generator) -> Tensor:
    """The same views by kornia's functions, with draws in the order in which they were always made."""

    def draw(low: float, high: float) -> Tensor:
        return (torch.rand(len(x), generator=generator) * (high - low) + low).view(-1, 1, 1, 1)

    chosen = draw(0, 1) < recipe.jitter_p
    bright, contrasted, saturated = (draw(max(0.0, 1 - s), 1 + s) for s in recipe.jitter[:3])
    y = (x * bright).clamp(0, 1)
    mean = y.mean(dim=(1, 2, 3), keepdim=True)
    y = ((y - mean) * contrasted + mean).clamp(0, 1)
    y = kornia.enhance.adjust_saturation_with_gray_subtraction(y, saturated.flatten())
    if hue := recipe.jitter[3]:
        y = kornia.enhance.adjust_hue(y, draw(-hue, hue).flatten() * 2 * math.pi)
    y = torch.where(chosen, y, x)
    if recipe.grey:
        y = torch.where(draw(0, 1) < recipe.grey, kornia.color.rgb_to_grayscale(y), y)
    return y


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", IMAGES)
def test_views_are_those_of_kornia_from_the_same_draws(name: str, recipe: str) -> None:
    x = IMAGES[name]
    ours, theirs = (torch.Generator().manual_seed(1) for _ in range(2))
    for _ in range(3):  # one batch after another: the stream does not shift
        found, expected = augment(x, RECIPES[recipe], ours), by_kornia(x, RECIPES[recipe], theirs)
        assert (found - expected).abs().max() <= CLOSE
    assert torch.equal(ours.get_state(), theirs.get_state())


class Counted(TorchDispatchMode):
    """Counts operations, views and allocations included."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_colour_takes_few_operations() -> None:
    """67, draws and views included, where by kornia's functions it was 143; on a GPU most of them are launches."""
    with Counted() as counted:
        augment(IMAGES["random"], RECIPES["contrastive"], torch.Generator())
    assert counted.count <= 71
