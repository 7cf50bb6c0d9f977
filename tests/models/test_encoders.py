"""Encoders: shapes, sizes, and how far their features can spread over the sphere."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from models.encoders import ENCODERS, build_encoder


def size(network: nn.Module) -> int:
    """How many weights a network has."""
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize("name", [name for name in ENCODERS if not name.startswith("resnet")])
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32)])
def test_an_encoder_says_how_wide_its_features_are(name: str, shape: tuple[int, ...]) -> None:
    if name.startswith("mcmahan") and shape[1] == 8:
        pytest.skip("two convolutions of 5x5 with pooling leave nothing of 8 pixels")
    encoder = build_encoder(name, shape)
    assert encoder.eval()(torch.rand(2, *shape)).shape == (2, encoder.features)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_the_averaged_encoder_is_of_the_size_of_the_tiny_one(shape: tuple[int, ...]) -> None:
    """Within a tenth, so that a difference between them is one of their endings."""
    assert size(build_encoder("averaged-conv", shape)) == pytest.approx(size(build_encoder("tiny-conv", shape)), rel=0.1)


def test_the_averaged_encoder_ends_in_the_average_over_places() -> None:
    encoder = build_encoder("averaged-conv", (3, 32, 32)).eval()
    x = torch.rand(2, 3, 32, 32)
    places = encoder.layers(x)
    assert places.shape == (2, 128, 4, 4)
    torch.testing.assert_close(encoder(x), places.flatten(2).mean(2))
