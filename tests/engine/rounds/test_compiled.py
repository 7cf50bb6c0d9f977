"""`workers.compile`: refused where it cannot work, near the ordinary computation, the same bits however a run goes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from shoal.engine.settings.hardware import resolve
from shoal.engine.settings.run_settings import SettingsError
from shoal.engine.store.checkpoint import load_round
from shoal.engine.store.opened_run import OpenedRun
from shoal.engine.workers.worker_processes import WorkerProcesses
from shoal.lifecycle.starting import new_run
from shoal.methods.training.local import compiled
from tests.runs import numbers, straight

compiler = pytest.mark.skipif(
    not any(map(shutil.which, (os.environ.get("CXX") or "g++", "clang++"))), reason="no C++ compiler on this machine"
)
COMPILED = {"workers": {"compile": "default"}, "rounds": 2}
SGD = {"epochs": 1, "batch": 32, "optimiser": "sgd", "lr": 0.05}
"""Adam divides gradients by their size, and so makes the rounding of a gradient near 0 as large as any other."""
FAMILIES: dict[str, dict[str, Any]] = {
    "fedpnp": {"method": {"name": "fedpnp"}, "local": SGD},
    "fedbyolcc": {"method": {"name": "fedbyolcc"}, "local": SGD},
    "cfcl": {
        "method": {"name": "cfcl", "steps": 6, "tau_a": 3, "selection": "none"},
        "model": {"encoder": "pooled-conv"},
    },
}
"""A past model, a momentum target, and an optimiser that goes on over rounds."""


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that an earlier run compiled is found."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def test_it_is_a_run_of_its_own_and_not_for_clients_in_one_computation(small: Callable[..., Any]) -> None:
    assert (
        small(rounds=2).digest() == small(rounds=2, workers={"compile": "off"}).digest() != small(**COMPILED).digest()
    )
    with pytest.raises(SettingsError, match=r"workers\.compile and workers\.batched"):
        small(workers={"compile": "default", "batched": 2})


def test_without_a_compiler_it_is_refused_at_once(
    small: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(SettingsError, match=r"neither g\+\+ nor clang\+\+ is on the PATH"):
        resolve(small(**COMPILED))
    assert resolve(small()).device == "cpu"


@compiler
def test_only_worker_slots_compile(home: Path, small: Callable[..., Any]) -> None:
    run = new_run(small(**COMPILED))
    assert OpenedRun(run).context.compile == "off"
    assert OpenedRun(run, working=True).context.compile == "default"


@pytest.mark.slow
@compiler
def test_networks_of_one_kind_share_what_was_compiled(own_cache: None) -> None:
    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.ReLU())

    x = torch.arange(6.0).view(2, 3)
    for _ in range(3):
        one = network()
        plain = one(x).clone()
        assert torch.allclose(compiled(one, "default")(x), plain, atol=1e-6)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    two = compiled(network(), "off")
    two(x)
    two(x[:1])
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@compiler
@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_a_compiled_run_is_near_the_other_and_the_same_on_two_slots(
    home: Path, own_cache: None, small: Callable[..., Any], name: str
) -> None:
    case = FAMILIES[name]
    settings = small(**COMPILED, **case)
    plain, run = straight(small(rounds=2, **case)), straight(settings)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    assert numbers(run) != numbers(plain), "the same bits: was anything compiled at all?"
    start = load_round(plain, 1).server.tensors
    for key, tensor in load_round(plain, 2).server.tensors.items():
        other = load_round(run, 2).server.tensors[key]
        if tensor.is_floating_point():
            assert float((tensor - other).norm()) <= 0.02 * float((tensor - start[key]).norm()) + 1e-6, key
        else:
            assert torch.equal(tensor, other), key
    with WorkerProcesses(2) as slots:
        assert numbers(straight(settings, slots.call, slots=2)) == numbers(run)
