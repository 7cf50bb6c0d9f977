"""Autocast on the pretend device is CUDA's, and methods train there in bf16: one device, no wait in a local step."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from shoal.engine.store.status import FINISHED
from shoal.methods.scores import probe
from tests.pretend_gpu import precision
from tests.pretend_gpu.cases import settings_of, write_sets
from tests.pretend_gpu.device import NAME, pretending
from tests.pretend_gpu.running import run_there
from tests.pretend_gpu.test_methods_there import BY_WHO_IS_FIRST
from tests.runs import straight

LOW = torch.bfloat16


@contextlib.contextmanager
def autocast(device: str) -> Iterator[None]:
    """As `torch.autocast`, which switches itself off where there is no such device."""
    before = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, LOW)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, before[0])
        torch.set_autocast_dtype(device, before[1])


WORK: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "product": lambda x, y: x @ x,
    "linear": lambda x, y: F.linear(x, x, x[0]),
    "convolution": lambda x, y: F.conv2d(x[None, None], x[None, None]),
    "einsum": lambda x, y: torch.einsum("ij,jk->ik", x, y),
    "batch of products": lambda x, y: torch.bmm(x[None], y[None]),
    "outer": lambda x, y: torch.addmm(x, x, x),
    "prelu": lambda x, y: F.prelu(x, x[0]),
    "sum of the low": lambda x, y: y.sum(),
    "sum of a dimension": lambda x, y: y.sum(1),
    "mean": lambda x, y: y.mean(1),
    "softmax": lambda x, y: y.softmax(1),
    "log softmax": lambda x, y: y.log_softmax(1),
    "exponential": lambda x, y: y.exp(),
    "power": lambda x, y: y.pow(2),
    "norm": lambda x, y: y.norm(dim=1),
    "normalised": lambda x, y: F.normalize(y, dim=1),
    "logsumexp": lambda x, y: y.logsumexp(1),
    "layer norm": lambda x, y: F.layer_norm(y, (4,)),
    "batch norm": lambda x, y: F.batch_norm(y, None, None, training=True),
    "cosine": lambda x, y: F.cosine_similarity(y, y),
    "loss": lambda x, y: F.mse_loss(y, y),
    "softplus": lambda x, y: F.softplus(y),
    "relu": lambda x, y: F.relu(y),
    "sum of two": lambda x, y: x + y,
    "addcmul of the low": lambda x, y: torch.addcmul(y, y, y),
    "addcmul of both": lambda x, y: torch.addcmul(x, y, y),
    "joined": lambda x, y: torch.cat((x, y)),
    "scattered": lambda x, y: y.scatter_add(0, torch.zeros_like(y, dtype=torch.int64), x),
    "doubles": lambda x, y: x.double() @ x.double(),
}


@pytest.mark.parametrize("name", WORK)
def test_precisions_are_those_of_cuda(name: str) -> None:
    """What torch's own autocast of CUDA says, by tensors that only claim to be there."""
    with FakeTensorMode(), autocast("cuda"):
        x = torch.ones(4, 4, device="cuda")
        expected = WORK[name](x, x.to(LOW)).dtype
    with pretending(), torch.autocast(NAME, LOW):
        x = torch.ones(4, 4, device=NAME)
        assert WORK[name](x, x.to(LOW)).dtype == expected
    with pretending():
        x = torch.ones(4, 4, device=NAME)
        assert WORK[name](x, x).dtype == (torch.float64 if name == "doubles" else torch.float32)


def test_what_is_named_is_what_cuda_looks_at() -> None:
    assert precision.LOWER | precision.WIDEST | {precision.BANNED} <= precision.looked_at()


def test_banned_under_autocast() -> None:
    with pretending(), torch.autocast(NAME, LOW), pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(torch.ones(2, device=NAME), torch.ones(2, device=NAME))


def test_gradients_come_back_in_float32() -> None:
    with pretending() as ledger:
        network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).to(NAME)
        with torch.autocast(NAME, LOW):
            loss = network(torch.ones(5, 3, device=NAME)).float().square().mean()
        assert ledger.precisions[LOW] > 0
        loss.backward()
        assert {p.grad.dtype for p in network.parameters() if p.grad is not None} == {torch.float32}


CASES = ("fedpnp", "fedpnp, colour", "ssd", "cfcl", "cfl", "cfl, text", "fedsimclr", "fedavg", "fedbyol")


@pytest.mark.long
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if ", " in name else ()) for name in CASES])
def test_methods_train_there_in_bf16(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps compute in bf16 and wait for nothing; the loss is float32's, roughly."""
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    monkeypatch.setattr(probe, "STRENGTHS", (1.0,))
    write_sets()
    low = {"workers": {"precision": "bf16"}}
    run, once = run_there(settings_of(name, changed=low))
    assert run.status().state == FINISHED
    assert not [event.message for event in run.events() if "failed" in event.kind]
    assert once.training.precisions[LOW] > 0
    _, twice = run_there(settings_of(name, twice=True, changed=low), trains_only=True)
    assert twice.training.precisions[LOW] > 1.1 * once.training.precisions[LOW], "there are more steps"
    more = Counter(twice.training.waits)
    more.subtract(once.training.waits)
    assert not {key: n for key, n in more.items() if n and not any(part in key[1] for part in BY_WHO_IS_FIRST)}
    reference = straight(settings_of(name))
    here, there = (each.table("clients")["loss"].dropna().to_numpy() for each in (reference, run))
    assert there[0] == pytest.approx(here[0], rel=0.05)
    assert there[0] != here[0]
