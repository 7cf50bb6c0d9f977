"""Encoders: shapes, sizes, and how far their features can spread over the sphere."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from shoal.methods.scores.representation import uniformity
from shoal.methods.training.local import seeded_build
from shoal.models.encoders import build_encoder, encoders_for


def size(network: nn.Module) -> int:
    """How many weights a network has."""
    return sum(parameter.numel() for parameter in network.parameters())


SMALL = [name for name in encoders_for("image") if not name.startswith("resnet")]
# Two convolutions of 5x5 with pooling leave nothing of 8 pixels.
FITTING = [
    (name, shape)
    for name in SMALL
    for shape in [(1, 8, 8), (1, 28, 28), (3, 32, 32)]
    if not (name.startswith("mcmahan") and shape[1] == 8)
]


@pytest.mark.parametrize(("name", "shape"), FITTING)
def test_an_encoder_says_how_wide_its_features_are(name: str, shape: tuple[int, ...]) -> None:
    encoder = build_encoder(name, shape)
    assert encoder.eval()(torch.rand(2, *shape)).shape == (2, encoder.features)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_the_averaged_encoder_is_of_the_size_of_the_tiny_one(shape: tuple[int, ...]) -> None:
    """Within a tenth, so that a difference between them is one of their endings."""
    assert size(build_encoder("averaged-conv", shape)) == pytest.approx(
        size(build_encoder("tiny-conv", shape)), rel=0.1
    )


def test_the_averaged_encoder_ends_in_the_average_over_places() -> None:
    encoder = build_encoder("averaged-conv", (3, 32, 32)).eval()
    x = torch.rand(2, 3, 32, 32)
    places = encoder.layers(x)
    assert places.shape == (2, 128, 4, 4)
    torch.testing.assert_close(encoder(x), places.flatten(2).mean(2))


def test_how_far_features_spread_at_initial_weights() -> None:
    """Where each feature is a standardised normal number, clipped at 0, two samples are at squared distance 1.36.

    That is a uniformity of 2.7 in 128 dimensions, where normal numbers have 3.94. What SmallConv starts from is that;
    averages of numbers that were clipped before are about alike; averages of what was not clipped spread.
    """
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(1000, 128, generator=generator)
    assert uniformity(normal) == pytest.approx(4 - 8 / 128, abs=0.01)
    assert uniformity(normal.relu()) == pytest.approx(2.7, abs=0.05)
    images = torch.rand(256, 3, 4, 4, generator=generator)
    x = nn.functional.interpolate(images, 32, mode="bilinear")

    def spread(name: str) -> float:
        return uniformity(seeded_build(lambda: build_encoder(name, (3, 32, 32)), 0)(x).detach())

    assert spread("tiny-conv") == pytest.approx(2.7, abs=0.1)
    assert spread("averaged-conv") > 3.2
