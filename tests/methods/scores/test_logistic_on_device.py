"""The linear probe on a device: the conjugate gradients that look rarely come to the same fit."""

from __future__ import annotations

import pytest
import torch

from shoal.methods.scores import logistic
from shoal.methods.scores.logistic import fit_logistic
from tests.pretend_gpu.device import DEVICE, pretending


@pytest.mark.parametrize("strength", [1e-3, 1.0, 100.0])
def test_the_fit_there_is_that_of_the_cpu(strength: float) -> None:
    drawn = torch.Generator().manual_seed(0)
    y = torch.arange(200) % 4
    x = torch.randn(200, 12, generator=drawn, dtype=torch.float64) + torch.nn.functional.one_hot(y, 12) * 2
    here = fit_logistic(x, y, 4, strength)
    with pretending() as ledger:
        there = fit_logistic(x.to(DEVICE), y.to(DEVICE), 4, strength)
        weight, waits = there.weight.cpu(), ledger.kinds()["a value"]
    assert there.converged
    torch.testing.assert_close(weight, here.weight, rtol=1e-4, atol=1e-4)
    assert waits < 40, "a look for a few Newton steps, not for every product"
    assert there.loss == pytest.approx(here.loss, rel=1e-6)


def test_it_looks_every_few_products() -> None:
    assert 1 < logistic.LOOK_EVERY < logistic.PRODUCTS
