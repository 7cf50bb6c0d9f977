"""The pretend GPU keeps a GPU's rules: nothing is mixed, every wait of the host is counted, draws are the device's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from shoal.core.streams import Streams
from tests.pretend_gpu.device import DEVICE, MixedDevices, pretending
from tests.pretend_gpu.ledger import Ledger


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with pretending() as found:
        found.clear()
        yield found


def there(*values: float) -> torch.Tensor:
    """A tensor of the device."""
    return torch.tensor(values, dtype=torch.float32).to(DEVICE)


def test_tensors_say_where_they_are_and_hold_the_right_values(ledger: Ledger) -> None:
    x = torch.arange(6.0, device=DEVICE).view(2, 3)
    y = (x @ x.T + torch.ones(2, 2, device=DEVICE))[1]
    assert y.device == torch.device(DEVICE)
    assert y.tolist() == [15.0, 51.0]
    assert y.cpu().device.type == "cpu"
    assert not torch.zeros(1).to("cpu").device.type.startswith("pretend")
    with pytest.raises((TypeError, RuntimeError), match="numpy"):
        y.numpy()


def test_networks_are_trained_there_as_on_the_cpu(ledger: Ledger) -> None:
    found = []
    for device in ("cpu", DEVICE):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2))
        network = network.to(device).to(memory_format=torch.channels_last)
        optimiser = torch.optim.Adam(network.parameters(), 0.01, fused=True)
        x = torch.rand(8, 1, 5, 5, generator=torch.Generator().manual_seed(1)).to(device)
        for _ in range(2):
            optimiser.zero_grad()
            network(x).logsumexp(1).mean().backward()
            optimiser.step()
        found.append({name: tensor.cpu() for name, tensor in network.state_dict().items()})
    for name, tensor in found[0].items():
        assert torch.equal(tensor, found[1][name]), name


MIXED: dict[str, Callable[[], object]] = {
    "sum": lambda: there(1, 2) + torch.ones(2),
    "product": lambda: there(1, 2) @ torch.ones(2),
    "joined": lambda: torch.cat((there(1), torch.ones(1))),
    "number of the device": lambda: torch.ones(2) * there(3)[0],
    "changed on the host": lambda: torch.ones(2).add_(there(1, 2)),
    "host indexed by the device": lambda: torch.ones(2)[there(1).long()],
    "values of the host": lambda: there(1, 2).index_put_((there(0, 1).long(),), torch.ones(2)),
    "loss": lambda: nn.functional.cross_entropy(there(1, 2)[None], torch.zeros(1, dtype=torch.int64)),
    "layer": lambda: nn.Linear(2, 2)(there(1, 2)),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixed_devices_raise(ledger: Ledger, name: str) -> None:
    with pytest.raises(MixedDevices, match=r"test_device\.py:\d+"):
        MIXED[name]()


def test_numbers_of_the_host_are_taken_beside_tensors(ledger: Ledger) -> None:
    """As CUDA takes 0-dimensional tensors of the CPU; it waits for none of them."""
    number, x = torch.tensor(2.0), there(1, 2)
    ledger.clear()
    found = torch.where(x > number, x * number, x).masked_fill(x == 1, 7.0)
    assert not ledger.waits
    assert found.tolist() == [7.0, 2.0]


WAITS: dict[str, tuple[str, Callable[[torch.Tensor], object]]] = {
    "item": ("a value", lambda x: x[0].item()),
    "float": ("a value", lambda x: float(x.sum())),
    "truth": ("a value", lambda x: bool((x > 0).any())),
    "list": ("a copy to the host", lambda x: x.tolist()),
    "cpu": ("a copy to the host", lambda x: x.cpu()),
    "copied in place": ("a copy to the device", lambda x: x.copy_(torch.ones(3))),
    "made of numbers": ("a copy to the device", lambda x: torch.tensor([1, 2], device=x.device)),
    "new of numbers": ("a copy to the device", lambda x: x.new_tensor([1.0, 2.0])),
    "indices of the host": ("a copy to the device", lambda x: x[torch.tensor([0, 1])]),
    "mask": ("the shape of a mask's entries", lambda x: x[x > 1]),
    "nonzero": ("the shape of nonzero", lambda x: torch.nonzero(x)),
    "unique": ("the shape of _unique2", lambda x: x.unique()),
    "counts": ("the shape of bincount", lambda x: torch.bincount(x.long())),
    "equal": ("a value", lambda x: torch.equal(x, x)),
    "eigenvalues": ("the check of _linalg_eigh", lambda x: torch.linalg.eigh(torch.diag(x))),
    "factors": ("the check of _linalg_check_errors", lambda x: torch.linalg.cholesky(torch.diag(x))),
}


@pytest.mark.parametrize("name", WAITS)
def test_waits_are_counted_with_the_line_that_asked(ledger: Ledger, name: str) -> None:
    kind, act = WAITS[name]
    x = there(1, 2, 3)
    ledger.clear()
    act(x)
    ((found, line),) = ledger.waits
    assert found == kind
    assert ledger.waits.total() == 1
    assert line.startswith("tests/pretend_gpu/test_device.py:")


def test_what_stays_on_the_device_waits_for_nothing(ledger: Ledger) -> None:
    x = there(3, 1, 2)
    ledger.clear()
    x[x > 2] = 0.5
    rows = x.sort().indices[:2]
    y = x.index_select(0, rows) + torch.rand(2, device=DEVICE, generator=Streams(0).torch("draw", DEVICE))
    (y.cumsum(0).max() * torch.eye(2, device=DEVICE)).softmax(1)
    assert ledger.operations > 5
    assert not ledger.waits


def test_a_generator_draws_on_its_own_device(ledger: Ledger) -> None:
    streams = Streams(0)
    drawn = torch.rand(3, device=DEVICE, generator=streams.torch("draw", DEVICE))
    assert drawn.tolist() == torch.rand(3, generator=streams.torch("draw")).tolist()
    with pytest.raises(MixedDevices, match="a generator of cpu draws on pretend"):
        torch.rand(3, device=DEVICE, generator=streams.torch("draw"))
    with pytest.raises(MixedDevices, match="a generator of pretend draws on cpu"):
        torch.rand(3, generator=streams.torch("draw", DEVICE))
    with pytest.raises(MixedDevices, match="a generator of cpu"):
        there(1, 2).uniform_(generator=streams.torch("draw"))


def test_it_is_gone_afterwards() -> None:
    with pretending():
        assert torch.accelerator.is_available()
        kept = torch.Generator
    assert torch.Generator is not kept
    assert not torch.__future__.get_overwrite_module_params_on_conversion()
    assert not torch.accelerator.is_available()
    assert torch.rand(2, generator=Streams(0).torch("draw")).device.type == "cpu"


def test_random_states_can_be_kept_with_it_and_after_it() -> None:
    """Whatever runs later in this process finds torch as it was."""
    for context in (pretending(), contextlib.nullcontext()):
        with context:
            before = torch.get_rng_state()
            with torch.random.fork_rng():
                torch.rand(3)
            assert torch.equal(torch.get_rng_state(), before)
