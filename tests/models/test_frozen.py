"""The frozen encoder has the published weights, and says what is wrong where it cannot be used."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest
import torch

from shoal.models.frozen import PRETRAINED, EncoderError, frozen_encoder

NAME = "efficientnet-lite0"


def test_features_are_those_of_the_published_network() -> None:
    """Recorded from the package efficientnet-lite-pytorch 0.1.0 with the same weights, on the same resized images."""
    steps = torch.linspace(0, 1, 64)
    x = torch.stack([torch.outer(steps, 1 - steps), torch.outer(steps, steps)])[:, None]
    features = frozen_encoder(NAME)(x)
    assert features.shape == (2, 1280)
    assert features.dtype == torch.float32
    assert features[0, 2].item() == pytest.approx(2.1509292, abs=1e-4)
    assert features[0].count_nonzero() > 100
    assert torch.equal(features, frozen_encoder(NAME)(x.expand(-1, 3, -1, -1)))


def test_other_weights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRETRAINED, NAME, replace(PRETRAINED[NAME], sha256="0" * 64))
    with pytest.raises(EncoderError, match="are not the published ones"):
        frozen_encoder(NAME)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EncoderError, match=r"is not installed: run pip install 'shoal\[encoders\]'"):
        frozen_encoder(NAME)
