from dataclasses import replace

import pytest
import torch

from shoal.data.views.augment import RECIPES, AugmentSettings, Recipe, augment, choose_recipe, two_views


def images(channels, n=16, side=12):
    return torch.rand(n, channels, side, side, generator=torch.Generator().manual_seed(0))


def draw(seed=0):
    return torch.Generator().manual_seed(seed)


ALL = {**RECIPES, "blur": replace(RECIPES["contrastive"], blur=1.0)}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", ALL)
def test_views_keep_shape_and_range(name, channels):
    x = images(channels)
    before = x.clone()
    y = augment(x, ALL[name], draw())
    assert y.shape == x.shape
    assert y.min() >= 0
    assert y.max() <= 1
    assert torch.equal(x, before)


@pytest.mark.parametrize("name", [name for name in ALL if name != "none"])
def test_the_generator_alone_decides(name):
    x = images(3)
    torch.manual_seed(1)
    first = augment(x, ALL[name], draw())
    torch.manual_seed(2)
    assert torch.equal(first, augment(x, ALL[name], draw()))
    assert not torch.equal(first, augment(x, ALL[name], draw(1)))


@pytest.mark.parametrize("name", [name for name in ALL if name != "none"])
def test_each_sample_has_its_own_draw(name):
    x = images(3, n=1).expand(12, -1, -1, -1).contiguous()
    y = augment(x, ALL[name], draw()).flatten(1)
    # Colour is left alone in a fifth of the views, the crop in none.
    assert len(y.unique(dim=0)) == 12


def test_none_is_the_identity():
    x = images(3)
    assert torch.equal(augment(x, RECIPES["none"], draw()), x)


def test_flip_mirrors_left_and_right():
    x = images(1)
    torch.testing.assert_close(augment(x, Recipe(flip=1.0), draw()), x.flip(-1), atol=1e-5, rtol=0)
    some = augment(x, Recipe(flip=0.5), draw())
    kept = (some - x).abs().flatten(1).amax(1) < 1e-5
    turned = (some - x.flip(-1)).abs().flatten(1).amax(1) < 1e-5
    assert (kept ^ turned).all()
    assert 0 < kept.sum() < len(x)


def test_grey_leaves_equal_channels():
    y = augment(images(3), Recipe(grey=1.0), draw())
    assert torch.equal(y[:, 0], y[:, 1])
    assert torch.equal(y[:, 0], y[:, 2])


def test_two_views_are_drawn_apart():
    x = images(1)
    a, b = two_views(x, RECIPES["grey"], draw()).chunk(2)
    assert a.shape == x.shape
    assert (a != b).flatten(1).any(1).all()


def test_recipe_by_data_set_and_by_hand():
    assert choose_recipe(AugmentSettings(), "mnist", (1, 28, 28)) == RECIPES["digits"]
    assert choose_recipe(AugmentSettings(), "cifar10", (3, 32, 32)) == RECIPES["contrastive"]
    assert choose_recipe(AugmentSettings(), "fashion-mnist", (1, 28, 28)) == RECIPES["grey"]
    for name, channels in (("digits", 1), ("my-stamps", 3)):
        assert choose_recipe(AugmentSettings(), name, (channels, 8, 16)) == RECIPES["small"]
        assert choose_recipe(AugmentSettings(), name, (channels, 8, 17)) != RECIPES["small"]
    assert choose_recipe(AugmentSettings(recipe="contrastive"), "digits", (1, 8, 8)) == RECIPES["contrastive"]
    assert choose_recipe(AugmentSettings(recipe="none"), "mnist", (1, 28, 28)) == Recipe()
    with pytest.raises(ValueError, match=r"augment\.recipe"):
        choose_recipe(AugmentSettings(recipe="stronger"), "mnist", (1, 28, 28))


def test_a_named_recipe_of_digits_is_what_it_was():
    """Only what `auto` gives small images has changed."""
    before = Recipe((0.3, 1.0), 0.0, 15.0, (0.4, 0.4, 0.0, 0.0), 0.8)
    assert choose_recipe(AugmentSettings(recipe="digits"), "digits", (1, 8, 8)) == before
    assert choose_recipe(AugmentSettings(), "mnist", (1, 28, 28)) == before
    assert choose_recipe(AugmentSettings(), "digits", (1, 8, 8)).crop[0] > before.crop[0]


def test_moved_views_lie_around_the_image() -> None:
    """A dot in the middle moves by at most a tenth of the side either way, and on average not at all."""
    x = torch.zeros(400, 1, 41, 41)
    x[:, :, 19:22, 19:22] = 1.0
    y = augment(x, Recipe(move=0.1), draw())[:, 0]
    places, mass = torch.arange(41.0) - 20, y.sum((1, 2))
    for dimension in (1, 2):
        off = (y.sum(3 - dimension) * places).sum(1) / mass
        assert off.abs().max() < 4.1 + 0.5
        assert off.abs().max() > 3.0
        assert off.mean().abs() < 0.5
    assert 7 < mass.min() < 9 < mass.max() < 12, "areas are scaled by exp(-0.2) to exp(0.2)"


def test_sheared_views_lean() -> None:
    """Of a bar from top to bottom the middle stays, and the ends lie at most half the share of the side away."""
    x = torch.zeros(200, 1, 41, 41)
    x[:, :, :, 19:22] = 1.0
    y = augment(x, Recipe(shear=0.2), draw())[:, 0]
    centre = (y * (torch.arange(41.0) - 20)).sum(2) / y.sum(2)
    assert centre[:, 20].abs().max() < 0.1
    assert 3.5 < centre[:, 0].abs().max() < 4.2
    torch.testing.assert_close(centre[:, 0], -centre[:, -1], atol=0.1, rtol=0)
