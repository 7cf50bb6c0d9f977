"""Clients that do not answer, answer late, or twice: the mean stays unbiased, and no bit changes."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shoal.engine.messages.wire import Answer, Request, Train
from shoal.engine.rounds.dropout import answering_clients
from shoal.engine.settings.run_settings import make_settings
from shoal.engine.store.checkpoint import load_manifest
from shoal.engine.store.codec import load_tensors, save_tensors
from shoal.engine.store.run_events import Event
from shoal.engine.store.status import FINISHED
from shoal.engine.workers.worker import Worker
from shoal.lifecycle.starting import new_run
from shoal.methods.averaging.mean import WeightedMean
from shoal.methods.contract.base import Message, Update
from shoal.methods.registry import BUILT_IN as METHODS
from shoal.review.pages.report import write_report
from tests.chaos.trial import settings_of
from tests.engine.rounds.test_every_method_runs import CASES
from tests.engine.test_recorded_bits import write_sets
from tests.runs import go_on, numbers, straight

Make = Callable[..., Any]
ROUNDS = 4000


def expected_error(values: np.ndarray, probability: float) -> float:
    """Standard error of one round's mean over those of K clients that answer.

    Of m that answer the mean of a simple random sample without replacement has variance S^2 / m (1 - m / K) (Cochran
    1977, theorem 2.2); m is binomial, and 1 where nobody would answer.
    """
    clients = len(values)
    spread = values.var(ddof=1)
    total = 0.0
    for m in range(clients + 1):
        share = math.comb(clients, m) * (1 - probability) ** m * probability ** (clients - m)
        n = max(1, m)
        total += share * spread / n * (1 - n / clients)
    return math.sqrt(total)


def average(updates: Iterable[Update]) -> dict[str, torch.Tensor]:
    """As an averaging method takes it: weighted by the number of samples."""
    mean = WeightedMean()
    for update in updates:
        mean.add(update.message.tensors, float(update.message.facts["n"]))
    return mean.mean()


@pytest.mark.long
@pytest.mark.parametrize("probability", [0.1, 0.3, 0.5, 0.95])
def test_the_mean_over_those_that_answer_is_unbiased(probability: float) -> None:
    values = np.random.default_rng(3).lognormal(size=10)
    updates = [Update(Message({"w": torch.tensor([v], dtype=torch.float64)}, {"n": 7})) for v in values]
    means = np.array(
        [
            float(average(updates[k] for k in answering_clients(range(10), round, 5, probability))["w"])
            for round in range(1, ROUNDS + 1)
        ]
    )
    error = expected_error(values, probability)
    assert abs(means.mean() - values.mean()) < 3 * error / math.sqrt(ROUNDS)
    assert means.std(ddof=1) == pytest.approx(error, rel=0.1)


@pytest.mark.long
def test_weights_by_samples_are_biased_by_less_than_the_share_of_one_client() -> None:
    """A ratio of two sums is unbiased only as their number grows; the page on reliability says so."""
    generator = np.random.default_rng(4)

    def bias(clients: int) -> float:
        sizes = generator.integers(1, 30, clients)
        values = sizes / sizes.mean()  # the larger, the more: the worst case
        full = float((sizes * values).sum() / sizes.sum())
        drawn = []
        for round in range(1500):
            here = answering_clients(range(clients), round, 5, 0.3)
            drawn.append(float((sizes[here] * values[here]).sum() / sizes[here].sum()))
        return abs(float(np.mean(drawn)) - full) / full

    assert bias(10) < 0.1
    assert bias(100) < 0.01


def test_each_client_drops_out_as_often_as_it_should_and_by_its_own_draw() -> None:
    here = [answering_clients(range(6), round, 1, 0.3) for round in range(ROUNDS)]
    shares = np.array([sum(client in each for each in here) for client in range(6)]) / ROUNDS
    assert np.abs(shares - 0.7).max() < 4 * math.sqrt(0.21 / ROUNDS)
    for round in range(20):  # for any other clients in the sample
        assert set(answering_clients([1, 3], round, 1, 0.3)) <= {1, 3}
        assert answering_clients([0, 1, 2, 3, 4, 5], round, 1, 0.3) == here[round]
    assert answering_clients([4, 2], 1, 1, 0.0) == [4, 2]
    assert all(len(answering_clients(range(3), round, 1, 0.99)) >= 1 for round in range(200))


def test_a_run_with_dropout_says_who_answered(home: Path, small: Make) -> None:
    changes: dict[str, Any] = {"partition": {"clients": 6}, "participation": {"dropout": 0.5}, "data": {"limit": 300}}
    run = straight(small(**changes))
    rounds, clients = run.table("rounds"), run.table("clients")
    assert rounds["left_out"].sum() > 0
    for round in (1, 2, 3):
        here = answering_clients(range(6), round, 0, 0.5)
        assert list(clients["client"][clients["round"] == round]) == here
        record = load_manifest(run, round).record
        assert record is not None
        assert record.left_out == tuple(sorted(set(range(6)) - set(here)))
    told = {e.round: e.facts["clients"] for e in run.events() if e.kind == "clients_dropped"}
    assert told == {r: sorted(set(range(6)) - set(answering_clients(range(6), r, 0, 0.5))) for r in told}
    assert "clients_dropped" not in write_report(run).read_text()


@pytest.mark.long
def test_a_run_with_dropout_resumes_to_the_same_bits(home: Path, small: Make) -> None:
    settings = small(partition={"clients": 6}, participation={"dropout": 0.5}, data={"limit": 300})
    whole = straight(settings)
    run = new_run(settings)

    def stop(event: Event) -> None:
        if event.kind == "client_finished" and event.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go_on(run, observers=[stop])
    go_on(run)
    assert numbers(run) == numbers(whole)


def test_dropout_counts_in_the_digest(small: Make) -> None:
    settings = small()
    assert settings.digest() == make_settings({**settings.to_json(), "participation": {"dropout": 0.0}}).digest()
    assert settings.digest() != small(participation={"dropout": 0.1}).digest()


# --- late and double answers ------------------------------------------------------------------------------------------


class Stragglers:
    """A worker whose every cohort has a second copy that ends later: in a round after, and after a resume."""

    def __init__(self) -> None:
        self.worker, self.late = Worker(), ThreadPoolExecutor(1)
        self.waiting: list[Train] = []
        self.came = 0

    def __call__(self, request: Request) -> Answer:
        # Copies of earlier rounds end while this request is worked on, and once more after it.
        copies = [self.late.submit(Worker().handle, old) for old in self.waiting]
        answer = self.worker.handle(request)
        for copy in copies:
            self.came += type(copy.result()).__name__ == "TrainAnswer"
        if isinstance(request, Train):
            self.waiting = [*self.waiting[-4:], request]
        return answer


@pytest.mark.long
@pytest.mark.parametrize("name", ["cfl", "cfcl", "fedema"])
def test_late_and_double_answers_change_no_bit(home: Path, small: Make, name: str) -> None:
    """Also of methods with private memory and messages between clients, after the round was closed, and a resume."""
    settings = small(**CASES[name])
    whole = straight(settings)
    run, late = new_run(settings), Stragglers()

    def stop(event: Event) -> None:
        if event.kind == "client_finished" and event.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go_on(run, late, [stop])
    go_on(run, late)
    assert late.came > 3
    assert numbers(run) == numbers(whole)
    assert not run.work.exists()


def test_two_threads_may_write_the_same_file(tmp_path: Path) -> None:
    """Two copies of a cohort may be on two threads of one process, as on a Dask worker."""
    tensors = {"w": torch.arange(20_000.0)}
    barrier = threading.Barrier(4)

    def write() -> None:
        barrier.wait()
        for _ in range(30):
            save_tensors(tmp_path / "update-1.safetensors", tensors, sync=False)

    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(write) for _ in range(4)]:
            each.result()
    assert torch.equal(load_tensors(tmp_path / "update-1.safetensors")[0]["w"], tensors["w"])
    assert [p.name for p in tmp_path.iterdir()] == ["update-1.safetensors"]


@pytest.mark.slow
@pytest.mark.parametrize("probability", [0.1, 0.3, 0.5])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_goes_on_without_those_that_drop_out(home: Path, method: str, probability: float) -> None:
    write_sets()
    run = straight(settings_of(method, participation={"dropout": probability}))
    assert run.status().state == FINISHED
