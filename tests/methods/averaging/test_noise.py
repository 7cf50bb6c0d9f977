"""Noise of private updates: normal values, of the operating system's generator, that nobody can draw again."""

import math
from types import SimpleNamespace

import pytest
import torch
from scipy.stats import kstest, norm

from shoal.methods.averaging import noise
from shoal.methods.averaging.noise import BLOCK, secret_normal


def test_secret_values_are_standard_normal():
    drawn = secret_normal((200, 1001))
    assert drawn.dtype == torch.float64
    assert drawn.shape == (200, 1001)
    values = drawn.flatten().numpy()
    assert kstest(values, norm.cdf).pvalue > 1e-4
    assert abs(torch.corrcoef(torch.stack((drawn.flatten()[:100_000], drawn.flatten()[-100_000:])))[0, 1]) < 0.02


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0), (BLOCK + 3,)])
def test_any_shape_is_filled(shape):
    drawn = secret_normal(shape)
    assert drawn.shape == shape
    assert drawn.isfinite().all()
    assert len(drawn.flatten().unique()) == math.prod(shape), "no value is drawn twice"


def test_every_bit_is_the_operating_systems(monkeypatch):
    """Whatever is seeded here changes nothing, and the same bits of the system would be the same values."""
    for _ in range(2):
        torch.manual_seed(3)
        first = secret_normal((64,))
        torch.manual_seed(3)
        assert not (secret_normal((64,)) == first).any()
    monkeypatch.setattr(noise, "os", SimpleNamespace(urandom=lambda count: bytes(count)))
    assert torch.equal(secret_normal((3,)), secret_normal((3,)))
