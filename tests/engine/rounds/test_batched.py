"""Clients in one computation, through the engine: near the loop, and the same bits however a run goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.engine.store.checkpoint import load_round
from shoal.engine.store.run_events import Event
from shoal.engine.workers.worker_processes import WorkerProcesses
from shoal.lifecycle.starting import new_run
from tests.runs import go_on, numbers, straight, unwell

FIVE = {
    "method": {"name": "fedavg"},
    "partition": {"kind": "iid", "clients": 5, "validation": 0.2},
    "model": {"encoder": "plain-conv"},
    "local": {"epochs": 2, "batch": 16},
    "rounds": 2,
}
PAIRS = {**FIVE, "workers": {"batched": 2}}
FAMILIES: dict[str, dict[str, Any]] = {
    "fedavg": FIVE,
    "fedavg near the start, moved by adam": {
        **FIVE,
        "local": {"epochs": 2, "batch": 16, "proximal": 0.5},
        "aggregation": {"server": {"name": "adam"}},
    },
    "fedpnp": {"method": {"name": "fedpnp"}, "partition": {"kind": "iid", "clients": 5}, "rounds": 2},
    "fedbyol": {"method": {"name": "fedbyol"}, "partition": {"kind": "iid", "clients": 5}, "rounds": 2},
}  # fmt: skip
"""Companions, and models that stay near the start."""


def weights(run: Any, round: int) -> torch.Tensor:
    """The server's numbers of a round as one vector."""
    tensors = load_round(run, round).server.tensors
    return torch.cat([t.double().flatten() for _, t in sorted(tensors.items()) if t.is_floating_point()])


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_pairs_are_near_the_loop_and_a_run_of_their_own(home: Path, small: Callable[..., Any], name: str) -> None:
    case = FAMILIES[name]
    together = {**case, "workers": {"batched": 2}}
    assert small(**case).digest() != small(**together).digest()
    loop, pairs = straight(small(**case)), straight(small(**together))
    last = len(loop.table("rounds"))
    assert len(pairs.table("rounds")) == last
    start, one, other = weights(loop, last - 1), weights(loop, last), weights(pairs, last)
    assert not torch.equal(one, other), "both ways round alike: were clients batched at all?"
    assert float((one - other).norm() / (one - start).norm()) < 1e-3
    assert list(pairs.table("clients")["client"]) == [0, 1, 2, 3, 4] * last


@pytest.mark.long
def test_batch_norm_in_bf16_on_the_cpu_is_computed_one_by_one(home: Path, small: Callable[..., Any]) -> None:
    """torch has no such BatchNorm for a stack there: every client failed."""
    case = {**FAMILIES["fedpnp"], "method": {"name": "fedsimclr"}, "rounds": 1}
    loop, pairs = (straight(small(**case, workers={"precision": "bf16", "batched": n})) for n in (1, 2))
    assert numbers(pairs) == numbers(loop)
    assert numbers(pairs) != numbers(straight(small(**case)))


def test_companions_in_pairs_give_the_same_bits_on_two_slots(home: Path, small: Callable[..., Any]) -> None:
    settings = small(**FAMILIES["fedpnp"], workers={"batched": 2})
    with WorkerProcesses(2) as slots:
        assert numbers(straight(settings, slots.call, slots=2)) == numbers(straight(settings))


def test_pairs_give_the_same_bits_on_two_slots_and_after_a_kill(
    home: Path, small: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.engine.rounds.training.MIN_COHORT_SECONDS", 1e9)
    whole = straight(small(**PAIRS))
    with WorkerProcesses(2) as slots:
        assert numbers(straight(small(**PAIRS), slots.call, slots=2)) == numbers(whole)

    def stop(event: Event) -> None:
        if event.kind == "client_finished" and event.round == 2:
            raise KeyboardInterrupt

    run = new_run(small(**PAIRS))
    with pytest.raises(KeyboardInterrupt):
        go_on(run, observers=[stop])
    done = sorted((run.work / "0002").glob("done-*.json"))
    assert len(done) == 5, "one slot has all groups in one cohort"
    for path in done[1:]:  # of the first pair half is left
        path.unlink()
    go_on(run)
    assert numbers(run) == numbers(whole)


def test_who_cannot_be_trained_is_left_out_of_a_pair(
    home: Path, small: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    unwell(monkeypatch, 3)
    run = straight(small(**PAIRS))
    assert list(run.table("clients")["client"]) == [0, 1, 2, 4] * 2
    assert {e.message for e in run.events() if e.kind == "client_left_out"} == {"client 3 is not well"}
