"""Evaluations in parts: the same numbers to the bit, for any assignment of samples to workers."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.engine.messages.wire import Answer, Evaluate, Evaluated, EvaluateShard, Failed, Request
from shoal.engine.rounds import evaluation as evaluating
from shoal.engine.rounds.evaluation import EvaluationStep
from shoal.engine.rounds.runner import ThreadRunner
from shoal.engine.settings.sections import WorkersSection
from shoal.engine.store import opened_run
from shoal.engine.store.round_paths import JUDGED, RoundPaths
from shoal.engine.store.run_facts import RunFacts
from shoal.engine.store.run_folder import RunError, RunFolder
from shoal.engine.workers.worker import Worker
from shoal.engine.workers.worker_processes import WorkerLost
from shoal.methods.registry import BUILT_IN as METHODS
from shoal.methods.scores import evaluation
from tests.runs import straight

Small = Callable[..., Any]
SHARED = [name for name, kind in METHODS.items() if kind.shared_in_evaluation != "nothing"]
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


class Office:
    """Workers that are one, asked one at a time; counts what they are asked."""

    def __init__(self) -> None:
        self.worker, self.lock, self.asked = Worker(), threading.Lock(), Counter[str]()

    def call(self, request: Request) -> Answer:
        with self.lock:
            self.asked[type(request).__name__] += 1
            return self.worker.handle(request)


def carried_out(settings: Any, slots: int) -> tuple[RunFolder, Office]:
    office = Office()
    return straight(settings, office.call, slots=slots), office


def numbers(run: RunFolder) -> Any:
    table = run.table("rounds")
    return table[[name for name in table.columns if name not in TIMES]]


def settings_of(name: str, small: Small) -> Any:
    case = CASES.get(name, {"method": {"name": name}, "rounds": 2})
    return small(**case, evaluate={"every": 1})


@pytest.mark.long
@pytest.mark.parametrize("name", [*SHARED, "fedsimclr_kmeans"])
def test_the_same_numbers_to_the_bit(home: Path, small: Small, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    whole, _ = carried_out(settings_of(name, small), 3)  # too few samples to be shared
    monkeypatch.setattr(evaluating, "MIN_PART_SAMPLES", 64)
    shared, office = carried_out(settings_of(name, small), 3)
    assert numbers(whole).equals(numbers(shared))
    assert whole.status().weights_sha256 == shared.status().weights_sha256
    last = whole.status().round
    judged = [RoundPaths(run.path, last).judged for run in (whole, shared)]
    assert judged[0].exists() == judged[1].exists()
    if judged[0].exists():
        assert judged[0].read_bytes() == judged[1].read_bytes()
    rounds = {"clusters": last, "features": 1}.get(METHODS[name].shared_in_evaluation)
    assert office.asked["EvaluateShard"] == 3 * (rounds or 0)
    assert not list(shared.work.rglob("*")), "what was seen is not kept"


def test_the_worker_that_computes_the_metrics_reads_no_batch(
    home: Path, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluating, "MIN_PART_SAMPLES", 64)
    looked: list[tuple[int, int]] = []
    batches = evaluation.all_batches

    def watched(whole_evaluation: Any, part: tuple[int, int] = (0, 1)) -> Any:
        looked.append(part)
        return batches(whole_evaluation, part)

    monkeypatch.setattr(evaluation, "all_batches", watched)
    carried_out(settings_of("fedcc", small), 2)
    assert Counter(looked) == {(0, 2): 2, (1, 2): 2}, "once a round"


def test_a_part_that_fails_fails_the_evaluation(home: Path, small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluating, "MIN_PART_SAMPLES", 64)
    worker = Office()

    def call(request: Request) -> Answer:
        if isinstance(request, EvaluateShard) and request.part == 1:
            return Failed("no memory is left")
        return worker.call(request)

    with pytest.raises(RunError, match="round 1 could not be evaluated: no memory is left"):
        straight(settings_of("fedcc", small), call, slots=2)


def test_a_lost_worker_has_the_evaluation_done_again(home: Path, small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluating, "MIN_PART_SAMPLES", 64)
    worker, lost = Office(), []

    def call(request: Request) -> Answer:
        if isinstance(request, EvaluateShard) and not lost:
            lost.append(request)
            raise WorkerLost("gone")
        return worker.call(request)

    run = straight(settings_of("fedcc", small), call, slots=2)
    assert lost
    assert numbers(run).equals(numbers(straight(settings_of("fedcc", small))))


def test_what_a_state_was_judged_with_before_is_not_used_again(
    home: Path, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first try may have left it beside the state."""
    monkeypatch.setattr(evaluating, "MIN_PART_SAMPLES", 64)
    settings = small(method={"name": "fedcc"}, rounds=1, evaluate={"recalibrate": 0})
    run, office = carried_out(settings, 2)
    folder = RoundPaths(run.path, 1).checkpoint
    other, _ = carried_out(small(method={"name": "fedcc"}, rounds=1), 1)
    (folder / JUDGED).write_bytes(RoundPaths(other.path, 1).judged.read_bytes())

    wanted = Evaluate(run.path, 1, folder / "server.safetensors", (), final=False)
    step = EvaluationStep(RunFacts(run), office.call, ThreadRunner(1), 2, print)
    answer = step.answer_in_parts(wanted, 2)
    assert isinstance(answer, Evaluated)
    assert not (folder / JUDGED).exists()
    assert answer.metrics["acc"] == float(run.table("rounds")["acc"].iloc[-1])


@pytest.mark.parametrize(
    ("samples", "device", "parts"), [(18_000, "cpu", 4), (18_000, "cuda", 0), (200_000, "cuda", 3)]
)
def test_on_a_gpu_only_many_samples_are_shared(samples: int, device: str, parts: int) -> None:
    facts: Any = SimpleNamespace(
        method=METHODS["fedcc"],
        settings=SimpleNamespace(workers=WorkersSection()),
        partition=SimpleNamespace(sample=range(samples)),
        spec=SimpleNamespace(test=0),
        lineage=SimpleNamespace(resolved=SimpleNamespace(device=device)),
    )
    step = EvaluationStep(facts, Worker().handle, ThreadRunner(1), 5, print)
    assert step.parts(final=True) == parts
