"""How workers compute: the products of float32."""

from __future__ import annotations

import pytest
import torch

from shoal.engine.workers.arithmetic import arithmetic


def found() -> tuple[object, ...]:
    """How this process computes now."""
    return (
        torch.backends.cuda.matmul.fp32_precision,
        torch.backends.cudnn.conv.fp32_precision,  # type: ignore[attr-defined]
    )


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_as_the_settings_say_and_afterwards_as_before(precision: str) -> None:
    before = found()
    products = "tf32" if precision == "tf32" else "ieee"

    def work() -> None:
        with arithmetic(precision):
            assert found() == (products, products)
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert found() == before
