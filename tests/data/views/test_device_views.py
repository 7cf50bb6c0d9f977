"""Views as they are made on a GPU: the draws and the images of `augment`, up to rounding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from shoal.data.views.augment import RECIPES, Recipe, two_views
from shoal.data.views.device_views import DeviceViews

OTHERS = {
    "turned and mirrored": Recipe(flip=0.5, rotate=40.0),
    "mirrored": Recipe(flip=0.5),
    "sheared crops": Recipe(crop=(0.3, 0.9), shear=0.2, rotate=10.0, flip=0.3),
    "blurred": Recipe(crop=(0.3, 1.0), blur=0.5, jitter=(0.4, 0.0, 0.0, 0.1), jitter_p=0.5),
}


@pytest.mark.parametrize("shape", [(1, 9, 9), (3, 12, 8)])
@pytest.mark.parametrize("name", [*RECIPES, *OTHERS])
def test_views_are_those_of_augment(name: str, shape: tuple[int, ...]) -> None:
    recipe = (RECIPES | OTHERS)[name]
    x = torch.rand(40, *shape, generator=torch.Generator().manual_seed(1))
    one, other = (torch.Generator().manual_seed(2) for _ in range(2))
    found = DeviceViews(recipe, shape, torch.device("cpu"))(x, one)
    torch.testing.assert_close(found, two_views(x, recipe, other), rtol=1e-3, atol=2e-4)
    assert torch.equal(one.get_state(), other.get_state()), "as many draws"


def test_what_is_drawn_decides() -> None:
    x = torch.rand(40, 1, 9, 9, generator=torch.Generator().manual_seed(1))
    recipe = RECIPES["grey"]
    views = DeviceViews(recipe, (1, 9, 9), torch.device("cpu"))
    one, other = (views(x, torch.Generator().manual_seed(seed)) for seed in (1, 2))
    assert not torch.equal(one, other)
    never = DeviceViews(replace(recipe, flip=0.0), (1, 9, 9), torch.device("cpu"))
    kept = (never(x, torch.Generator().manual_seed(1)) == one).flatten(1).all(1).float().mean()
    assert 0.3 < kept < 0.7, "half of the views are mirrored"
