"""How workers compute: algorithms that repeat, and the products of float32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.engine.messages.wire import Evaluate, Failed
from shoal.engine.workers.arithmetic import arithmetic
from shoal.engine.workers.worker import Worker
from shoal.lifecycle.driving import drive
from shoal.lifecycle.starting import new_run
from shoal.methods.registry import BUILT_IN as METHODS
from tests.runs import stopped


def found() -> tuple[object, ...]:
    """How this process computes now."""
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cuda.matmul.fp32_precision,
        torch.backends.cudnn.conv.fp32_precision,  # type: ignore[attr-defined]
        torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
    )


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_as_the_settings_say_and_afterwards_as_before(precision: str, deterministic: bool) -> None:
    before = found()
    products = "tf32" if precision == "tf32" else "ieee"

    def work() -> None:
        with arithmetic(precision, deterministic):
            assert found() == (deterministic, products, products, not deterministic)
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert found() == before
    assert before[0] is False


@pytest.mark.long
def test_deterministic_runs_have_the_same_bits_on_a_cpu(home: Path, small: Callable[..., Any]) -> None:
    reference = small(method={"name": "fedpnp"}, data={"limit": 60}, rounds=2)
    careful = small(method={"name": "fedpnp"}, data={"limit": 60}, rounds=2, workers={"deterministic": True})
    assert careful.digest() != reference.digest()
    assert drive(new_run(careful)).weights_sha256 == drive(new_run(reference)).weights_sha256


@pytest.mark.parametrize("deterministic", [False, True])
def test_an_operation_that_does_not_repeat_is_refused(
    home: Path, small: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, deterministic: bool
) -> None:
    """Writing twice to one place in one go: torch promises no order, on any device."""
    kind = METHODS["fedcc"]
    settings = small(method={"name": "fedcc"}, data={"limit": 60}, workers={"deterministic": deterministic})
    run = stopped(settings, "round_finished", 1)

    def written(self: object, *args: object) -> dict[str, float]:
        torch.zeros(2).put_(torch.tensor([0, 0]), torch.ones(2))
        return {}

    monkeypatch.setattr(kind, "evaluate", written)
    state = run.path / "rounds" / "0001" / "server.safetensors"
    answer = Worker().handle(Evaluate(run.path, 1, state, (), final=False))
    assert isinstance(answer, Failed) is deterministic, answer
