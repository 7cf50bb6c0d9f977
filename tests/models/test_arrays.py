"""Encoders of vectors and windows: shapes, and units that do not matter."""

from __future__ import annotations

import pytest
import torch

from shoal.methods.training.local import seeded_build
from shoal.models.encoders import build_encoder, encoders_for


@pytest.mark.parametrize(
    ("name", "shape"), [("mlp", (3,)), ("mlp", (768,)), ("series-conv", (1, 8)), ("series-conv", (4, 96))]
)
def test_an_encoder_says_how_wide_its_features_are(name: str, shape: tuple[int, ...]) -> None:
    encoder = build_encoder(name, shape)
    assert encoder.eval()(torch.rand(2, *shape)).shape == (2, encoder.features)


@pytest.mark.parametrize(("name", "shape"), [("mlp", (3,)), ("series-conv", (3, 32))])
def test_units_of_columns_and_channels_do_not_matter(name: str, shape: tuple[int, ...]) -> None:
    encoder = seeded_build(lambda: build_encoder(name, shape), 0).train()
    x = torch.randn(64, *shape, generator=torch.Generator().manual_seed(0))
    units = torch.tensor([1.0, 1000.0, 20.0]).view(-1, *[1] * (len(shape) - 1))
    torch.testing.assert_close(encoder(x), encoder(x * units + 5 * units), rtol=1e-2, atol=1e-3)


def test_encoders_of_a_kind() -> None:
    assert encoders_for("vector") == ["mlp"]
    assert encoders_for("series") == ["series-conv"]
    assert "small-conv" in encoders_for("image")
    assert "mlp" not in encoders_for("image")
