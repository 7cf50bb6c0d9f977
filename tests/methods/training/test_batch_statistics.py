"""Mean and variance from the sums over a layer's input are those of torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from shoal.methods.training import batch_statistics
from shoal.methods.training.batch_statistics import _sums_of


@pytest.mark.parametrize("shape", [(5, 3, 4, 4), (70, 3), (70, 3, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_by_blocks_are_those_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    monkeypatch.setattr(batch_statistics, "BLOCK_ROWS", 16)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    # A mean far above the deviation: a plain difference of squares in float32 would lose the variance.
    x = (x + 1_000 * torch.arange(3).view(1, 3, *[1] * (len(shape) - 2))).to(dtype)
    found = _sums_of(x)
    axes = [axis for axis in range(x.dim()) if axis != 1]
    variance, mean = torch.var_mean(x.double(), dim=axes, correction=0)
    assert found.count == x.numel() / 3
    _equal_as_float32(found.mean, mean)
    torch.testing.assert_close(found.variance, variance, rtol=1e-8, atol=1e-12)


def test_channels_last_images_have_the_same_sums() -> None:
    x = torch.randn(9, 4, 6, 6, generator=torch.Generator().manual_seed(1))
    one = _sums_of(x)
    other = _sums_of(x.contiguous(memory_format=torch.channels_last))
    _equal_as_float32(one.mean, other.mean)
    _equal_as_float32(one.variance, other.variance)


def _equal_as_float32(one: Tensor, other: Tensor) -> None:
    assert torch.equal(one.float(), other.float())
