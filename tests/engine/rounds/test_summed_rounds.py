"""Sums in place of messages: masks change no bit, whatever the workers, after kills, and when a client is lost."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.core.errors import ShoalError
from shoal.engine.messages.fixed_point import REST, decoded, encoded
from shoal.engine.messages.masks import masked, public_key, secret_key
from shoal.engine.messages.wire import Answer, Failure, Request, Train, TrainAnswer
from shoal.engine.rounds.outcomes import RoundFailed
from shoal.engine.settings.run_settings import SettingsError
from shoal.engine.store.finished_work import finished_work, forget_work, load_update
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.workers import worker as workers
from shoal.engine.workers.worker import Worker
from shoal.engine.workers.worker_processes import WorkerProcesses
from shoal.lifecycle.starting import new_run
from shoal.methods.contract.base import ClientError
from shoal.methods.contract.declared import MessageForm, TensorForm
from tests.conftest import one_quick
from tests.runs import go_on, numbers, stopped, stopped_where, straight

Make = Callable[..., Any]
POINTS = {"name": "gaussian", "limit": None, "options": {"samples": 60, "clusters": 3}}
CASES: dict[str, dict[str, Any]] = {
    "fedcc": {"method": {"name": "fedcc"}},
    "fedsimclr": {"method": {"name": "fedsimclr"}},
    "fedkmeans": {"method": {"name": "fedkmeans", "standardise": True}, "data": POINTS, "rounds": 9},
    "fedgmm": {"method": {"name": "fedgmm"}, "data": POINTS, "rounds": 18},
}
BY_CASE = one_quick(["fedkmeans", *(case for case in CASES if case != "fedkmeans")])


def settings(small: Make, case: str, sums: str, **changes: Any) -> Any:
    """Settings of a run of four clients."""
    changes = {"rounds": 2, "participation": {"minimum": 0.5, "retries": 0}, **CASES[case], **changes}
    return small(**changes, partition={"kind": "iid", "clients": 4}, privacy={"sums": sums})


def weights(run: RunFolder) -> str:
    digest = run.status().weights_sha256
    assert digest
    return digest


@pytest.mark.parametrize("case", BY_CASE)
def test_masks_change_no_bit_on_any_number_of_slots(home: Path, small: Make, case: str) -> None:
    expected = numbers(straight(settings(small, case, "integer")))
    assert numbers(straight(settings(small, case, "masked"))) == expected
    for count in (2, 5):
        with WorkerProcesses(count) as slots:
            assert numbers(straight(settings(small, case, "masked"), slots.call, slots=count)) == expected


@pytest.mark.parametrize("case", one_quick(["fedcc", "fedsimclr"]))
def test_a_sum_is_that_of_the_messages_but_for_rounding(home: Path, small: Make, case: str) -> None:
    plain, summed = (straight(settings(small, case, sums)).table("clients") for sums in ("plain", "integer"))
    assert summed["client"].tolist() == plain["client"].tolist()
    assert summed["loss"].tolist() == pytest.approx(plain["loss"].tolist(), rel=1e-3)


@pytest.mark.parametrize("case", BY_CASE)
def test_a_run_that_is_killed_and_resumed_sends_the_same_bytes(home: Path, small: Make, case: str) -> None:
    expected = numbers(straight(settings(small, case, "integer")))
    run = stopped(settings(small, case, "masked"), "client_finished", 2)
    sent = {client: bytes_of(run, client) for client in range(4)}
    assert any(sent.values())
    again: dict[int, Any] = {}
    worker = Worker()

    def call(request: Request) -> Answer:
        answer = worker.handle(request)
        if isinstance(request, Train) and request.round == 2:
            again.update({client: bytes_of(run, client) for client in range(4)})
        return answer

    go_on(run, call)
    assert numbers(run) == expected
    assert all(again.get(client, message) == message for client, message in sent.items() if message)


@pytest.mark.parametrize("case", ["fedcc", "fedkmeans"])
def test_noise_is_the_same_when_a_client_is_asked_again(home: Path, small: Make, case: str) -> None:
    noisy: dict[str, Any] = {"sums": "masked", "clip": 0.5, "noise": 1.0}
    if case == "fedkmeans":
        noisy |= {"noise": 0.1, "unit": "row"}
    run = stopped(
        small(**{**CASES[case], "rounds": 2, "partition": {"kind": "iid", "clients": 3}}, privacy=noisy),
        "client_finished",
        1,
    )
    client = next(client for client in range(3) if finished_work(run, 1, client))
    work = finished_work(run, 1, client)
    assert work is not None
    sent = work.sha256[work.update]
    forget_work(run, 1, work)
    again: list[str] = []
    worker = Worker()

    def call(request: Request) -> Answer:
        answer = worker.handle(request)
        if isinstance(answer, TrainAnswer) and client in answer.clients:
            again.append(answer.finished[client].sha256[work.update])
        return answer

    go_on(run, call)
    assert again[0] == sent
    assert run.table("rounds")["epsilon_mean"].iloc[0] > 0


def test_noise_is_the_same_in_a_new_attempt(home: Path, small: Make) -> None:
    privacy = {"sums": "integer", "clip": 0.5, "noise": 1.0, "unit": "row"}
    worker = WithoutClient(1, 1)
    straight(small(**{**CASES["fedkmeans"], "partition": {"kind": "iid", "clients": 4}}, privacy=privacy), worker)
    first, second = worker.sent[:2]
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_with_the_same_key_another_run_has_other_noise(
    home: Path, small: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site's key serves all its runs: from two multiples of the same noise the rows' histogram would follow."""
    key = secret_key(home, 0)
    monkeypatch.setattr(workers, "secret_key", lambda *_: key)
    sent = []
    for _ in range(2):
        privacy = {"sums": "integer", "clip": 0.5, "noise": 1.0, "unit": "row"}
        worker = WithoutClient(1, 0)
        straight(small(**CASES["fedkmeans"], privacy=privacy), worker)
        sent.append(torch.cat([part.flatten() for part in worker.sent[0].values()]))
    assert not torch.equal(*sent)


def test_who_drops_out_is_not_lost(home: Path, small: Make) -> None:
    runs = []
    for sums in ("integer", "masked"):
        worker = WithoutClient(1, 0)
        dropping = {"minimum": 0.1, "dropout": 0.1}
        runs.append(straight(settings(small, "fedkmeans", sums, participation=dropping, seed=2, rounds=4), worker))
        assert set(worker.attempts) == {1}
        assert runs[-1].table("clients").groupby("round").size().tolist() == [3, 4, 3, 4]
    assert weights(runs[0]) == weights(runs[1])


def bytes_of(run: RunFolder, client: int) -> Any:
    """The client's message in round 2, if it is there."""
    work = finished_work(run, 2, client)
    return None if work is None else work.sha256[work.update]


class WithoutClient:
    """A worker on which a client, and others, fail in a round."""

    def __init__(self, client: int, round: int, *others: int) -> None:
        self.clients = {client, *others}
        self.round = round
        self.worker = Worker()
        self.attempts: list[int] = []
        self.sent: list[Any] = []
        """What client 0 sent."""

    def __call__(self, request: Request) -> Answer:
        answer = self.worker.handle(request)
        if isinstance(request, Train) and isinstance(answer, TrainAnswer):
            assert request.plan is not None
            self.attempts.append(request.plan.attempt)
            if 0 in answer.finished:
                run = RunFolder(request.run)
                self.sent.append(load_update(run, request.round, answer.finished[0]).message.tensors)
            if request.round == self.round:
                gone = dict.fromkeys(self.clients & answer.clients.keys(), Failure("it is gone"))
                return TrainAnswer({**answer.clients, **gone})
        return answer


@pytest.mark.parametrize("case", BY_CASE)
def test_a_lost_client_begins_a_new_attempt_and_stays_out(home: Path, small: Make, case: str) -> None:
    runs = []
    for sums in ("integer", "masked"):
        worker = WithoutClient(1, 1)
        run = straight(settings(small, case, sums), worker)
        assert worker.attempts[0] == 1
        assert 2 in worker.attempts
        clients = run.table("clients")
        assert clients[clients["round"] == 1]["client"].tolist() == [0, 2, 3]
        assert clients[clients["round"] == 2]["client"].tolist() == [0, 2, 3]
        runs.append(run)
    assert weights(runs[0]) == weights(runs[1])


@pytest.mark.long
def test_a_loss_outlives_a_kill(home: Path, small: Make) -> None:
    expected = weights(straight(settings(small, "fedcc", "integer"), WithoutClient(1, 1)))
    run = stopped(settings(small, "fedcc", "masked"), "client_finished", 2, WithoutClient(1, 1))
    go_on(run, WithoutClient(1, 1))
    assert weights(run) == expected


@pytest.mark.parametrize("sums", ["integer", "masked"])
def test_a_kill_in_a_new_attempt_draws_no_other_clients(home: Path, small: Make, sums: str) -> None:
    half = {"minimum": 0.5, "retries": 0, "fraction": 0.5}
    of_eight = {**CASES["fedcc"], "rounds": 1, "participation": half, "partition": {"kind": "iid", "clients": 8}}
    case = small(**of_eight, privacy={"sums": sums})
    lost = straight(case).table("clients")["client"][0]
    expected = weights(straight(case, WithoutClient(lost, 1)))
    seen = itertools.count(1)
    run = stopped_where(
        case, lambda entry, _: entry.kind == "client_finished" and next(seen) == 5, WithoutClient(lost, 1)
    )
    go_on(run)
    assert weights(run) == expected


def test_with_fewer_than_three_clients_a_run_ends_in_one_sentence(home: Path, small: Make) -> None:
    case = settings(small, "fedcc", "masked", participation={"minimum": 0.1, "retries": 0})
    run = new_run(case)
    with pytest.raises(RoundFailed, match=r"2 clients are left, and privacy\.sums: masked needs 3"):
        go_on(run, WithoutClient(1, 1, 2))


def test_a_masked_message_says_nothing_and_the_masks_cancel(tmp_path: Path) -> None:
    parts = {"w": torch.zeros(1000, dtype=torch.int64)}
    keys = {client: public_key(tmp_path, client) for client in range(3)}
    hidden = [masked(parts, secret_key(tmp_path, c), c, keys, "round 1, attempt 1")["w"] for c in range(3)]
    again = masked(parts, secret_key(tmp_path, 0), 0, keys, "round 1, attempt 1")["w"]
    other = masked(parts, secret_key(tmp_path, 0), 0, keys, "round 1, attempt 2")["w"]
    assert torch.equal(hidden[0], again)
    assert not torch.equal(hidden[0], other)
    assert not (hidden[0] + hidden[1] + hidden[2]).any()
    for message in hidden:
        bits = (message[:, None] >> torch.arange(64)) & 1
        assert bits.double().mean() == pytest.approx(0.5, abs=0.01)


def test_whole_numbers_hold_sums_in_any_unit_and_refuse_what_is_too_large() -> None:
    values = torch.tensor([1e15, -3.25, 1e-9, 0.0], dtype=torch.float64)
    parts = encoded({"x": values}, None, 3)
    total = {name: part * 3 for name, part in parts.items()}
    form = MessageForm({"x": TensorForm((4,), torch.float64)})
    assert decoded(total, form, mean=False)["x"].tolist() == pytest.approx((3 * values).tolist(), rel=1e-5)
    assert set(parts) == {"x", "x" + REST}
    with pytest.raises(ClientError, match="expected at most"):
        encoded({"x": values * 1e6}, None, 3)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"method": {"name": "kfed"}}, "method.name"),
        ({"method": {"name": "fedkmeans", "landmarks": 60}}, "method.landmarks"),
        ({"aggregation": {"rule": "median"}}, "aggregation.rule"),
        ({"participation": {"buffer": 2}}, "participation.buffer"),
    ],
)
def test_what_needs_single_messages_is_refused_by_name(small: Make, changes: dict[str, Any], named: str) -> None:
    with pytest.raises((SettingsError, ShoalError), match=named):
        small(**{"method": {"name": "fedcc"}, **changes}, privacy={"sums": "masked"})
