"""Views of vectors and windows: what is changed, by how much, and by the given draws alone."""

from __future__ import annotations

import pytest
import torch

from shoal.data.views.array_views import ARRAY_RECIPES, ArrayRecipe, array_view
from shoal.data.views.augment import AugmentSettings, choose_recipe, two_views

SHAPES = {"columns": (400, 5), "windows": (400, 2, 40)}


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def samples(name: str) -> torch.Tensor:
    """Columns or channels whose scales differ by a factor of 1,000."""
    x = torch.randn(SHAPES[name], generator=draw(9))
    scale = torch.ones(SHAPES[name][1])
    scale[1] = 1000
    return x * scale.view(-1, *[1] * (x.dim() - 2))


@pytest.mark.parametrize("name", SHAPES)
def test_the_generator_alone_decides_and_no_recipe_changes_nothing(name: str) -> None:
    x = samples(name)
    recipe = ARRAY_RECIPES[name]
    one, other = array_view(x, recipe, draw(1)), array_view(x, recipe, draw(2))
    assert torch.equal(one, array_view(x, recipe, draw(1)))
    assert not torch.equal(one, other)
    assert torch.equal(array_view(x, ArrayRecipe(), draw(1)), x)
    assert two_views(x, recipe, draw()).shape == (2 * len(x), *x.shape[1:])
    assert torch.equal(x, samples(name)), "the samples stay"


@pytest.mark.parametrize("name", SHAPES)
def test_noise_is_a_share_of_the_spread_of_each_column_or_channel(name: str) -> None:
    x = samples(name)
    noise = array_view(x, ArrayRecipe(jitter=0.2), draw()) - x
    dims = [dim for dim in range(x.dim()) if dim != 1]
    torch.testing.assert_close(noise.std(dims) / x.std(dims), torch.full((x.shape[1],), 0.2), rtol=0.1, atol=0.0)


def test_masked_values_are_those_of_other_samples_in_the_same_column() -> None:
    x = samples("columns")
    view = array_view(x, ArrayRecipe(mask=0.3), draw())
    changed = view != x
    assert changed.float().mean().item() == pytest.approx(0.3, abs=0.03)
    for column in range(x.shape[1]):
        assert set(view[:, column].tolist()) <= set(x[:, column].tolist())


def test_a_piece_of_a_window_becomes_its_mean() -> None:
    x = samples("windows")
    view = array_view(x, ArrayRecipe(mask=0.25), draw())
    changed = (view != x)[:, 0]
    assert set(changed.sum(1).tolist()) == {10}
    edges = changed.int().diff(dim=1).abs().sum(1)
    assert int(edges.max()) <= 2, "in one piece"
    torch.testing.assert_close(
        view[changed[:, None].expand_as(x)], x.mean(2, keepdim=True).expand_as(x)[changed[:, None].expand_as(x)]
    )


def test_scaling_keeps_the_mean_and_the_shape() -> None:
    x = samples("windows")
    view = array_view(x, ArrayRecipe(scale=0.5), draw())
    torch.testing.assert_close(view.mean(2), x.mean(2), rtol=1e-3, atol=1e-2)
    factor = view.std(2) / x.std(2)
    assert 0.6 < float(factor.min()) < 0.7
    assert 1.5 < float(factor.max()) < 1.66


def test_a_crop_is_moved_in_time_and_not_stretched() -> None:
    ramp = torch.arange(40.0).repeat(200, 1, 1)
    view = array_view(ramp, ArrayRecipe(crop=0.5), draw())
    for window in view[:, 0]:
        kept = window[window != 19.5]
        assert 19 <= len(kept) <= 41
        assert set(kept.diff().tolist()) <= {1.0}
    assert len({float(window[0]) for window in view[:, 0]}) > 5, "pieces begin at many places"


def test_the_recipe_is_that_of_the_kind() -> None:
    assert choose_recipe(AugmentSettings(), "mine", (5,)) == ARRAY_RECIPES["columns"]
    assert choose_recipe(AugmentSettings(), "mine", (2, 40)) == ARRAY_RECIPES["windows"]
    assert choose_recipe(AugmentSettings(recipe="none"), "mine", (5,)) == ArrayRecipe()
    with pytest.raises(ValueError, match=r"augment\.recipe is 'columns'; of images there are auto, none, contrastive"):
        choose_recipe(AugmentSettings(recipe="columns"), "mnist", (1, 28, 28))
