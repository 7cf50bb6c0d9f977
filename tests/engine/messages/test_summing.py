"""Messages summed by workers, a group at a time: near the loop, the same bits however a run goes, each inspected."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.core.errors import FailureCause
from shoal.engine.cluster.remote_files import RemoteFiles
from shoal.engine.cluster.remote_pool import RemoteFilesPool
from shoal.engine.messages.summing import GroupSum, SumsInspection
from shoal.engine.messages.wire import Train
from shoal.engine.settings.run_settings import SettingsError, make_settings
from shoal.engine.store.checkpoint import load_round
from shoal.engine.store.codec import load_message, read_sealed, save_message
from shoal.engine.store.finished_work import FinishedWork, finished_work
from shoal.engine.store.opened_run import OpenedRun
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.store.run_events import Event
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.workers.worker import Worker
from shoal.engine.workers.worker_processes import WorkerProcesses
from shoal.lifecycle.preflight import check_method
from shoal.methods.cfl.fedavg import FedAvg
from shoal.methods.contract.base import ClientError, Message, Update
from shoal.methods.registry import BUILT_IN as METHODS
from tests.engine.cluster.test_remote_files import Elsewhere
from tests.engine.rounds.test_every_method_runs import CASES
from tests.runs import go_on, numbers, stopped, straight, unwell

Make = Callable[..., Any]
SEVEN: dict[str, Any] = {
    "method": {"name": "fedavg"},
    "partition": {"kind": "iid", "clients": 7, "validation": 0.2},
    "rounds": 2,
}
THREES = {**SEVEN, "workers": {"summed": 3}}


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A remote store beside the home folder, and an empty cache."""
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    return (tmp_path / "remote-files").as_uri()


def weights(run: RunFolder) -> torch.Tensor:
    """The server's numbers after the last round as one vector."""
    tensors = load_round(run, len(run.table("rounds"))).server.tensors
    return torch.cat([t.double().flatten() for _, t in sorted(tensors.items())])


def told(run: RunFolder, kind: str) -> list[Event]:
    return [event for event in run.events() if event.kind == kind]


class Watching(Worker):
    """A worker of which is seen what lies in the round's work folder after each request; some answers are changed."""

    def __init__(self, change: Callable[[int, Update], Update] = lambda client, update: update) -> None:
        super().__init__()
        self.files: set[str] = set()
        self.change = change

    def handle(self, request: Any) -> Any:
        answer = super().handle(request)
        if isinstance(request, Train):
            self.files |= {path.name for path in RoundPaths(request.run, request.round).work.iterdir()}
        return answer

    def opened(self, path: Path) -> OpenedRun:
        opened = super().opened(path)
        method = opened.method
        if "client_update" not in method.__dict__:
            begin = type(method).client_update

            def client_update(message: Message, client: Any) -> Update:
                return self.change(client.id, begin(method, message, client))

            method.client_update = client_update  # type: ignore[method-assign]
        return opened


def far(client: int, update: Update) -> Update:
    """Client 4 changes the model far more than anybody else; in float32, to the numbers' own dtype."""
    if client != 4:
        return update
    tensors = {k: t * 1e5 if t.is_floating_point() else t for k, t in update.message.tensors.items()}
    return replace(update, message=replace(update.message, tensors=tensors))


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.averages])
def test_every_method_that_averages_is_near_what_each_message_gives(home: Path, small: Make, name: str) -> None:
    known: dict[str, Any] = CASES.get(name, {})
    case = {"partition": {"kind": "iid", "clients": 5, "validation": 0.2}, **known, "rounds": 1}
    case["method"] = {**known.get("method", {}), "name": name}
    loop, sums = straight(small(**case)), straight(small(**case, workers={"summed": 3}))
    torch.testing.assert_close(weights(sums), weights(loop), rtol=1e-5, atol=1e-6)
    rows, expected = sums.table("clients"), loop.table("clients")
    for column in ("client", "bytes_up", "bytes_down", "loss"):
        if column in expected:
            assert list(rows[column]) == list(expected[column]), "what a client did is the same"


def test_the_server_gets_sums_by_hand_and_no_update(home: Path, small: Make) -> None:
    messages: dict[int, Message] = {}

    def keep(client: int, update: Update) -> Update:
        messages[client] = update.message
        return update

    watching = Watching(keep)
    sums = straight(small(**{**THREES, "rounds": 1}), watching.handle)
    expected: dict[str, torch.Tensor] = {}
    for group in ([0, 1, 2], [3, 4, 5], [6]):
        part: dict[str, torch.Tensor] = {}
        for client in group:
            for name, tensor in messages[client].tensors.items():
                part[name] = part.get(name, 0.0) + messages[client].facts["n"] * tensor.double()
        expected = {name: expected.get(name, 0.0) + tensor for name, tensor in part.items()}
    samples = sum(message.facts["n"] for message in messages.values())
    found = load_round(sums, 1).server.tensors
    for name, tensor in expected.items():
        mean = tensor / samples
        assert torch.equal(found[name], mean.to(found[name].dtype) if found[name].is_floating_point() else mean.round())
    assert {name for name in watching.files if name.endswith(".safetensors")} == {
        "sum-0.safetensors", "sum-3.safetensors", "sum-6.safetensors",
    }  # fmt: skip
    assert small(**SEVEN).digest() != small(**THREES).digest()
    assert small(**{**SEVEN, "workers": {"summed": 2}}).digest() != small(**THREES).digest()


def test_the_same_bits_on_two_slots_and_after_a_kill(home: Path, small: Make) -> None:
    whole = straight(small(**THREES))
    with WorkerProcesses(2) as slots:
        assert numbers(straight(small(**THREES), slots.call, slots=2)) == numbers(whole)
    run = stopped(small(**THREES), "client_finished", 2)
    paths = RoundPaths(run.path, 2)
    assert len(list(paths.work.glob("done-*.json"))) == 7, "one slot has all groups in one cohort"
    for client in (1, 3, 4, 5):  # of the first group two are left, of the second none
        paths.done(client).unlink()
    go_on(run)
    assert numbers(run) == numbers(whole)


def test_a_damaged_sum_is_made_again(home: Path, small: Make) -> None:
    whole = straight(small(**THREES))
    run = stopped(small(**THREES), "client_finished", 2)
    path = RoundPaths(run.path, 2).work / "sum-3.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert finished_work(run, 2, 4) is None
    assert finished_work(run, 2, 1) is not None
    go_on(run)
    assert numbers(run) == numbers(whole)


def test_a_sum_that_is_damaged_after_training_is_made_again(home: Path, small: Make) -> None:
    damaged = []

    class Damaging(Worker):
        def handle(self, request: Any) -> Any:
            answer = super().handle(request)
            if isinstance(request, Train) and request.round == 2 and not damaged:
                path = RoundPaths(request.run, 2).work / "sum-3.safetensors"
                damaged.append(path.write_bytes(path.read_bytes()[:-1] + b"x"))
            return answer

    run = straight(small(**THREES), Damaging().handle)
    assert damaged
    assert numbers(run) == numbers(straight(small(**THREES)))
    assert {event.client for event in told(run, "client_failed")} == {3, 4, 5}


def test_through_a_remote_store_each_sum_travels_once(
    home: Path, small: Make, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []
    get = RemoteFiles.get

    def counting(self: Any, path: str, *rest: Any) -> None:
        if "/back/" in path:
            fetched.append(path.rpartition("/")[2])
        get(self, path, *rest)

    monkeypatch.setattr(RemoteFiles, "get", counting)
    pool = RemoteFilesPool(Elsewhere(), url)
    run = straight(small(**THREES), pool.call)
    pool.close()
    assert numbers(run) == numbers(straight(small(**THREES)))
    assert sorted(fetched) == sorted(["sum-0.safetensors", "sum-3.safetensors", "sum-6.safetensors"] * 2)


def test_who_cannot_be_trained_is_left_out_of_its_sum(home: Path, small: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    unwell(monkeypatch, 3)
    sums, loop = straight(small(**THREES)), straight(small(**SEVEN))
    assert list(sums.table("clients")["client"]) == [0, 1, 2, 4, 5, 6] * 2
    assert {event.message for event in told(sums, "client_left_out")} == {"client 3 is not well"}
    torch.testing.assert_close(weights(sums), weights(loop), rtol=1e-5, atol=1e-6)


def test_a_client_that_fails_in_the_second_try_of_its_group_alone_is_tried_again(
    home: Path, small: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = straight(small(**THREES))
    begin, tries = FedAvg.local_steps, dict.fromkeys(range(7), 0)

    def local_steps(self: Any, message: Any, client: Any) -> Any:
        tries[client.id] += 1
        if (client.id, tries[client.id]) in ((3, 1), (4, 2)):
            raise ClientError("not now")
        return begin(self, message, client)

    monkeypatch.setattr(FedAvg, "local_steps", local_steps)
    run = straight(small(**THREES, participation={"retries": 2}))
    assert run.status().weights_sha256 == whole.status().weights_sha256
    assert [event.client for event in told(run, "client_failed")] == [3, 4]


def test_a_change_out_of_proportion_is_refused_and_the_others_of_its_group_are_summed_again(
    home: Path, small: Make
) -> None:
    sums, loop = (straight(small(**case), Watching(far).handle) for case in (THREES, SEVEN))
    for run in (sums, loop):
        assert list(run.table("clients")["client"]) == [0, 1, 2, 3, 5, 6] * 2
        refused = told(run, "client_refused")
        assert {event.client for event in refused} == {4}
        assert "and the median of the round is" in refused[0].message
        assert not told(run, "client_failed"), "the others of its group did nothing wrong"
        assert not told(run, "client_left_out")
    torch.testing.assert_close(weights(sums), weights(loop), rtol=1e-5, atol=1e-6)


def test_a_message_without_the_declared_form_never_reaches_a_sum(home: Path, small: Make) -> None:
    def nan(client: int, update: Update) -> Update:
        if client != 4:
            return update
        tensors = {k: t * torch.nan if t.is_floating_point() else t for k, t in update.message.tensors.items()}
        return replace(update, message=replace(update.message, tensors=tensors))

    run = straight(small(**THREES, participation={"retries": 0}), Watching(nan).handle)
    assert {event.client for event in told(run, "client_refused")} == {4}
    assert torch.isfinite(weights(run)).all()


@pytest.mark.parametrize(
    ("facts", "change", "why"),
    [
        ({"clients": [0, 1]}, 0.0, r"sum of clients \[0, 1\], expected \[0, 1, 2\]"),
        ({"n": 5}, 0.0, "fact 'n' is 5"),
        ({}, torch.nan, "NaN"),
    ],
)
def test_the_server_looks_at_a_sum_too(home: Path, small: Make, facts: dict[str, Any], change: float, why: str) -> None:
    run = stopped(small(**THREES), "client_finished", 2)
    opened = OpenedRun(run)
    paths = RoundPaths(run.path, 2)
    path = paths.work / "sum-0.safetensors"
    message = load_message(path)
    tensors = {k: t + change if t.is_floating_point() else t for k, t in message.tensors.items()}
    sha256 = save_message(path, Message(tensors, {**message.facts, **facts}))
    assert [finished_work(run, 2, client) for client in range(3)] == [None] * 3
    said = [FinishedWork.from_json(read_sealed(paths.done(client))) for client in range(3)]
    works = [replace(work, sha256={**work.sha256, path.name: sha256}) for work in said]
    inspection = SumsInspection(run, opened, load_round(run, 1).server, works)
    found = inspection.inspect(works).refused
    assert found is not None
    assert found.cause == FailureCause.FILE
    assert re.search(why, found.error), found.error


def test_two_sums_of_one_name_are_no_sum(home: Path, small: Make) -> None:
    run = stopped(small(**THREES), "client_finished", 2)
    works = [work for client in range(3) if (work := finished_work(run, 2, client)) is not None]
    works[1] = replace(works[1], sha256={**works[1].sha256, works[1].update: "0" * 64})
    inspection = SumsInspection(run, OpenedRun(run), load_round(run, 1).server, works)
    found = inspection.inspect(works).refused
    assert found is not None
    assert "is not one sum of [0, 1, 2]" in found.error


def test_groups_in_one_computation_can_be_summed(home: Path, small: Make) -> None:
    settings = small(**{**SEVEN, "workers": {"summed": 4, "batched": 2}})
    run = straight(settings)
    torch.testing.assert_close(weights(run), weights(straight(small(**SEVEN))), rtol=1e-2, atol=1e-3)
    with WorkerProcesses(2) as slots:
        assert numbers(straight(settings, slots.call, slots=2)) == numbers(run)
    with pytest.raises(SettingsError, match=r"workers\.summed to 1 or to a multiple of workers\.batched"):
        make_settings({"workers": {"summed": 3, "batched": 2}})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"method": {"name": "cfl"}}, "the server of method 'cfl' needs the message of each client"),
        ({"aggregation": {"rule": "median"}}, "aggregation.rule and aggregation.clip compare"),
        ({"participation": {"buffer": 2}}, "participation.buffer weighs each message by its age"),
    ],
)
def test_what_needs_each_message_is_refused_before_any_work(
    home: Path, small: Make, changes: dict[str, Any], why: str
) -> None:
    settings = small(**{**SEVEN, **changes, "workers": {"summed": 2}})
    with pytest.raises(SettingsError, match=rf"workers\.summed .*{why}.*set workers\.summed=1"):
        check_method(settings, home)


def test_a_group_without_a_message_writes_nothing(home: Path) -> None:
    assert GroupSum(RoundPaths(home, 1)).finish({}) == {}
    assert not (home / "work").exists()
