"""Clients in one computation, through the engine: near the loop, and the same bits however a run goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.checkpoint import load_round
from engine.worker_processes import WorkerProcesses
from methods.base import ClientError
from methods.cfl.fedavg import FedAvg
from tasks.launch import new_run
from tests.runs import go_on, numbers, straight

FIVE = {
    "method": {"name": "fedavg"},
    "partition": {"kind": "iid", "clients": 5, "validation": 0.2},
    "model": {"encoder": "plain-conv"},
    "local": {"epochs": 2, "batch": 16},
    "rounds": 2,
}
PAIRS = {**FIVE, "workers": {"batched": 2}}


def test_pairs_are_near_the_loop_and_a_run_of_their_own(home: Path, small: Callable[..., Any]) -> None:
    assert small(**FIVE).digest() != small(**PAIRS).digest()
    loop, pairs = straight(small(**FIVE)), straight(small(**PAIRS))
    start, one, other = (load_round(run, k).server.tensors["weights"] for run, k in ((loop, 1), (loop, 2), (pairs, 2)))
    assert not torch.equal(one, other), "both ways round alike: were clients batched at all?"
    assert float((one - other).norm() / (one - start).norm()) < 1e-3
    assert list(pairs.table("clients")["client"]) == [0, 1, 2, 3, 4] * 2


def test_pairs_give_the_same_bits_on_two_slots_and_after_a_kill(home: Path, small: Callable[..., Any]) -> None:
    whole = straight(small(**PAIRS))
    with WorkerProcesses(2) as slots:
        assert numbers(straight(small(**PAIRS), slots.call, slots=2)) == numbers(whole)

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "client_finished" and event["round"] == 2:
            raise KeyboardInterrupt

    run = new_run(small(**PAIRS))
    with pytest.raises(KeyboardInterrupt):
        go_on(run, observers=[stop])
    done = sorted((run.work / "0002").glob("done-*.json"))
    assert len(done) == 5, "one slot has all groups in one cohort"
    for path in (done[1], done[2], done[3], done[4]):  # of the first pair half is left
        path.unlink()
    go_on(run)
    assert numbers(run) == numbers(whole)


def test_who_cannot_be_trained_is_left_out_of_a_pair(
    home: Path, small: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = FedAvg.local_steps

    def local_steps(self: Any, message: Any, client: Any) -> Any:
        if client.id == 3:
            raise ClientError("client 3 is not well")
        return begin(self, message, client)

    monkeypatch.setattr(FedAvg, "local_steps", local_steps)
    run = straight(small(**PAIRS))
    assert list(run.table("clients")["client"]) == [0, 1, 2, 4] * 2
    assert {e["message"] for e in run.events() if e["event"] == "client_left_out"} == {"client 3 is not well"}
