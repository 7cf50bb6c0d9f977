"""Casts and counts of all layers in one launch each, on the pretend GPU: the numbers of autocast and of BatchNorm."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from shoal.methods.training.shared_launches import SharedLaunches
from shoal.models.network_copies import copy_network
from shoal_research.benchmarks.device import Case, world
from tests.pretend_gpu.device import DEVICE, pretending

CASE = Case("shared", "fedsimclr", "tiny-conv", (1, 8, 8), 1, 8, 1, 4)


@pytest.fixture(autouse=True)
def there() -> Iterator[None]:
    with pretending():
        yield


def numbers(network: nn.Module, together: contextlib.AbstractContextManager[None], passes: int) -> list[Tensor]:
    """Outputs, gradients and buffers after some passes of a network in bf16, on the CPU."""
    x = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    with together, torch.autocast("pretend", torch.bfloat16):
        outputs = [network(x + k).z for k in range(passes)]
    torch.stack(outputs).square().sum().backward()
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    found = [*outputs, *gradients, *network.buffers()]
    return [tensor.detach().cpu() for tensor in found]


@pytest.mark.parametrize("passes", [1, 2])
def test_numbers_are_those_of_each_layer_alone(passes: int) -> None:
    method, _ = world(CASE, DEVICE, "bf16")
    network = method.network().train()
    own = copy_network(network)
    launches = SharedLaunches([own], method.context)
    expected = numbers(network, contextlib.nullcontext(), passes)
    found = numbers(own, launches.together(), passes)
    for one, other in zip(found, expected, strict=True):
        # A weight that two passes use has the sum of two gradients, here added before it is cast.
        torch.testing.assert_close(one, other, rtol=0 if passes == 1 else 0.02, atol=0 if passes == 1 else 0.01)
    counts = [buffer for name, buffer in own.named_buffers() if name.endswith("num_batches_tracked")]
    assert [int(count) for count in counts] == [passes] * 5
    assert all(isinstance(p, nn.Parameter) and p.dtype == torch.float32 for p in own.parameters())


def test_layers_get_their_own_back_after_an_error() -> None:
    method, _ = world(CASE, DEVICE, "bf16")
    network = method.network()
    before = [*network.parameters(), *network.buffers()]
    launches = SharedLaunches([network], method.context)

    def fail() -> None:
        with launches.together():
            assert next(network.parameters()).dtype == torch.bfloat16
            raise ValueError("halfway")

    with pytest.raises(ValueError, match="halfway"):
        fail()
    assert all(one is other for one, other in zip(before, [*network.parameters(), *network.buffers()], strict=True))


def test_nothing_is_cast_in_float32() -> None:
    method, _ = world(CASE, DEVICE, "fp32")
    network = method.network()
    with SharedLaunches([network], method.context).together():
        assert next(network.parameters()).dtype == torch.float32
