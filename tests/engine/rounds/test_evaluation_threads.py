"""Evaluations by several threads: the same numbers to the bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shoal.engine.messages.wire import Answer, Evaluate, Failure, Request
from shoal.engine.rounds.evaluation import EvaluationStep
from shoal.engine.rounds.runner import ThreadRunner
from shoal.engine.store import opened_run
from shoal.engine.store.judged import judged_tensors, save_judged
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.store.run_folder import RunError, RunFolder
from shoal.engine.workers.worker import Worker
from shoal.engine.workers.worker_processes import WorkerLost
from tests.runs import straight

Small = Callable[..., Any]
CASES: dict[str, dict[str, Any]] = {
    "cfcl": {
        "method": {"name": "cfcl", "steps": 4, "tau_a": 2, "tau_p": 2, "reserve": 3, "budget": 3},
        "model": {"encoder": "pooled-conv"},
        "rounds": 20,
    },
    "ncc": {"method": {"name": "ncc"}, "rounds": 1},
    # Judged by the features of two models, of which none is shared.
    "fedsimclr_kmeans": {
        "method": {"name": "fedsimclr_kmeans", "kmeans_rounds": 3, "components": 3, "starts": 2},
        "rounds": 4,
    },
}
TIMES = {"seconds", "seconds_train", "seconds_aggregate", "seconds_evaluate", "seconds_round", "finished_at"}


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened_run, "EVALUATION_BATCH", 32)


def numbers(run: RunFolder) -> Any:
    table = run.table("rounds")
    return table[[name for name in table.columns if name not in TIMES]]


def settings_of(name: str, small: Small) -> Any:
    case = CASES.get(name, {"method": {"name": name}, "rounds": 2})
    return small(**case, evaluate={"every": 1})


@pytest.mark.long
@pytest.mark.parametrize("name", ["fedcc", "fedpnp", "ncc", "cfcl", "fedsimclr", "fedsimclr_kmeans"])
def test_the_same_numbers_to_the_bit(home: Path, small: Small, name: str) -> None:
    one, three = (straight(settings_of(name, small), slots=slots) for slots in (1, 3))
    assert numbers(one).equals(numbers(three))
    assert one.status().weights_sha256 == three.status().weights_sha256
    judged = [RoundPaths(run.path, one.status().round).judged for run in (one, three)]
    assert judged[0].exists() == judged[1].exists()
    if judged[0].exists():
        assert judged[0].read_bytes() == judged[1].read_bytes()


def test_an_evaluation_that_fails_ends_the_run(home: Path, small: Small) -> None:
    worker = Worker()

    def call(request: Request) -> Answer:
        return Failure("no memory is left") if isinstance(request, Evaluate) else worker.handle(request)

    with pytest.raises(RunError, match="round 1 could not be evaluated: no memory is left"):
        straight(settings_of("fedcc", small), call)


def test_a_lost_worker_has_the_evaluation_done_again(home: Path, small: Small) -> None:
    worker, lost = Worker(), []

    def call(request: Request) -> Answer:
        if isinstance(request, Evaluate) and not lost:
            lost.append(request)
            raise WorkerLost("gone")
        return worker.handle(request)

    run = straight(settings_of("fedcc", small), call)
    assert lost
    assert numbers(run).equals(numbers(straight(settings_of("fedcc", small))))


def test_what_a_state_was_judged_with_before_is_not_used_again(tmp_path: Path) -> None:
    """A first try may have left it beside the state."""
    server = tmp_path / "server.safetensors"
    save_judged(server, {"mean": np.ones(2)})
    assert judged_tensors(server)["mean"].tolist() == [1, 1]
    save_judged(server, {})
    assert judged_tensors(server) == {}


@pytest.mark.parametrize(
    ("runner", "device", "threads"), [("local", "cpu", 5), ("local", "cuda", 1), ("dask", "cpu", 1)]
)
def test_threads_are_the_idle_slots_of_this_machine(runner: str, device: str, threads: int) -> None:
    facts: Any = SimpleNamespace(
        settings=SimpleNamespace(workers=SimpleNamespace(runner=runner)),
        lineage=SimpleNamespace(resolved=SimpleNamespace(device=device)),
    )
    assert EvaluationStep(facts, Worker().handle, ThreadRunner(1), 5, print).threads == threads
