"""Several clients in one computation on the pretend GPU: as one after another there, in float32 and in bf16."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from shoal.core.streams import Streams
from shoal.methods.contract.base import Client, Update
from shoal.methods.registry import METHODS
from shoal.methods.training.steps import GradientMethod
from shoal_research.benchmarks.device import Case, world
from tests.pretend_gpu.device import DEVICE, pretending

STEPPING = sorted(name for name, kind in METHODS.items() if issubclass(kind, GradientMethod))


@pytest.fixture(autouse=True)
def there() -> Iterator[None]:
    with pretending():
        yield


def weights_of(update: Update) -> torch.Tensor:
    tensors = update.message.tensors or update.memory or {}
    return torch.cat([tensors[name].cpu().double().flatten() for name in sorted(tensors)])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", STEPPING)
def test_together_is_one_by_one(name: str, precision: str) -> None:
    case = Case(name, name, "tiny-conv", (1, 8, 8), 3, 16, 1, 8)
    method, cohort = world(case, DEVICE, precision)
    for round in (1, 2):
        one_by_one = [method.client_update(*exchange) for exchange in cohort]
        together = method.cohort_update(cohort)
        for one, other in zip(one_by_one, together, strict=True):
            assert isinstance(other, Update), other
            assert one.metrics == pytest.approx(other.metrics, rel=0.1 if precision == "bf16" else 2e-3, abs=0.02)
            if precision == "fp32":
                apart = (weights_of(one) - weights_of(other)).norm() / weights_of(one).norm().clamp(min=1e-9)
                assert apart < 1e-3
        cohort = [
            (message, Client(c.id, c.train, c.validation, update.memory or {}, (), Streams(0, round + 1, c.id)))
            for (message, c), update in zip(cohort, one_by_one, strict=True)
        ]
