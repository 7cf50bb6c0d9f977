"""How a run gives its requests to hosts, and what a host does with one; the Prefect server is told what to say."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from engine.cluster_work import ClusterLost
from engine.settings import SettingsError
from engine.wire import Answer, Evaluated, Failed, Train, answer_of
from engine.wire_text import plain_of, text_of
from engine.worker_processes import WorkerLost
from tasks import prefect_pool, serving
from tasks.hosts import Host, task_of, version_here
from tasks.prefect_channel import LOST
from tasks.prefect_pool import PrefectPool
from tasks.serving import Desk

HERE = Host("gpu-1.example.org", 1, "cpu", version_here(), "a1")
REQUEST = Train(Path("/runs/this"), 3, (), ())
DONE = text_of({"clients": {}})


class Server:
    """What Prefect's server would say."""

    url = "http://127.0.0.1:4200/api"

    def __init__(self, *hosts: Host) -> None:
        self.connected = {host.id: host for host in hosts}
        self.submitted: list[tuple[UUID, str, str]] = []
        self.given: dict[UUID, tuple[str, str]] = {}
        self.said: dict[UUID, str] = {}
        self.removed: list[str] = []
        self.cancelled: list[UUID] = []
        self.away = False
        self.usually = "RUNNING"

    def _reached(self) -> None:
        if self.away:
            raise httpx.ConnectError("away")

    def hosts(self) -> dict[str, Host]:
        self._reached()
        return dict(self.connected)

    def submit(self, key: str, name: str, text: str) -> tuple[UUID, str]:
        self._reached()
        run = uuid4()
        self.submitted.append((run, key, name))
        return run, f"request of {run}"

    def answers(self, runs: Any) -> dict[UUID, tuple[str, str]]:
        self._reached()
        return {run: self.given[run] for run in runs if run in self.given}

    def states(self, runs: Any) -> dict[UUID, str]:
        return {run: self.said.get(run, self.usually) for run in runs}

    def remove(self, artifact: str) -> None:
        self.removed.append(artifact)

    def cancel(self, run: UUID) -> None:
        self.cancelled.append(run)

    def answer(self, number: int, text: str = DONE) -> None:
        run = self.submitted[number][0]
        self.given[run] = f"answer of {run}", text


def soon(holds: Callable[[], bool]) -> None:
    for _ in range(1500):
        if holds():
            return
        time.sleep(0.02)
    raise AssertionError("it never came to hold")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"HOSTS": 0.02, "STATES": 0.02, "GONE": 0.5, "PATIENCE": 30.0, "LAST": 0.02}.items():
        monkeypatch.setattr(prefect_pool, name, seconds)
    monkeypatch.setattr(prefect_pool.cluster_work, "LOOK", 0.05)


@contextlib.contextmanager
def asked(
    server: Server, *requests: Train, slots: int | None = None, empty: float = 30.0
) -> Iterator[tuple[PrefectPool, list[Future[Answer]]]]:
    """A pool, and requests to it from threads of their own, begun in order."""
    with contextlib.closing(PrefectPool(server, "cpu", slots, empty)) as pool, ThreadPoolExecutor(8) as threads:  # type: ignore[arg-type]
        if server.connected and not server.away:
            pool.wait_for_hosts()
        calls = []
        for request in requests:
            calls.append(threads.submit(pool.call, request))
            soon(lambda: calls[-1].done() or pool._waiting or len(pool._given) == len(calls))  # type: ignore[arg-type, return-value]
            time.sleep(0.02)
        try:
            yield pool, calls
        finally:
            pool.close()


def rounds(server: Server) -> list[str]:
    return [name.partition(",")[0] for _, _, name in server.submitted]


def test_requests_are_begun_in_order_and_none_waits_at_a_busy_host() -> None:
    other = replace(HERE, name="gpu-2", id="b2")
    server = Server(HERE, other)
    with asked(server, *(replace(REQUEST, round=n) for n in (1, 2, 3, 4))) as (pool, calls):
        assert pool.count == 2
        soon(lambda: len(server.submitted) == 2)
        time.sleep(0.2)
        assert rounds(server) == ["round 1", "round 2"]
        assert {key for _, key, _ in server.submitted} == {"a1", "b2"}
        busy = server.submitted[0][1]
        server.answer(1)
        soon(lambda: len(server.submitted) == 3)
        assert rounds(server)[2] == "round 3"
        assert server.submitted[2][1] != busy
        server.answer(0)
        soon(lambda: len(server.submitted) == 4)
        server.answer(2)
        server.answer(3)
        assert [call.result(30) for call in calls] == [answer_of(REQUEST, {"clients": {}})] * 4
        assert len(server.removed) == 8, "requests and answers"
        assert not server.cancelled


def test_a_run_takes_no_more_slots_than_it_may() -> None:
    server = Server(replace(HERE, slots=4))
    with asked(server, *[REQUEST] * 4, slots=2) as (pool, _):
        assert (pool.count, pool.most) == (2, 2)
        soon(lambda: len(server.submitted) == 2)
        time.sleep(0.2)
        assert len(server.submitted) == 2


def test_hosts_that_join_are_used() -> None:
    server = Server(HERE)
    with asked(server, REQUEST, REQUEST) as (pool, _):
        soon(lambda: len(server.submitted) == 1)
        server.connected["b2"] = replace(HERE, id="b2", slots=3)
        soon(lambda: len(server.submitted) == 2)
        assert server.submitted[1][1] == "b2"
        assert pool.count == 4


def test_a_host_that_is_gone_for_a_moment_is_waited_for() -> None:
    server = Server(HERE)
    with asked(server, REQUEST) as (_, (call,)):
        soon(lambda: len(server.submitted) == 1)
        server.connected = {}
        time.sleep(0.2)
        server.connected = {"a1": HERE}
        time.sleep(0.6)
        assert not call.done()
        server.connected = {}
        with pytest.raises(WorkerLost, match=r"host gpu-1\.example\.org was lost .* not connected to Prefect's server"):
            call.result(30)
    assert server.cancelled == [server.submitted[0][0]]
    assert server.removed == [f"request of {server.submitted[0][0]}"]


class Late:
    """A deadline that has passed as soon as its clock has begun."""

    def __init__(self) -> None:
        self.asked = 0

    def why(self, spent: float, idle: float) -> str | None:
        self.asked += 1
        return "client 5, which took too long" if spent > 0.1 else None


def test_a_deadline_counts_from_the_beginning_of_the_work() -> None:
    server, late = Server(HERE), Late()
    server.usually = "SCHEDULED"
    with asked(server, replace(REQUEST, deadline=late)) as (_, (call,)):
        time.sleep(0.5)
        assert not call.done()
        assert not late.asked, "another run's work may be before it"
        server.usually = "RUNNING"
        with pytest.raises(WorkerLost, match=r"gpu-1\.example\.org was given up at client 5"):
            call.result(30)
    assert server.cancelled, "whereby its host ends the work"


@pytest.mark.parametrize("state", ["CRASHED", "COMPLETED"])
def test_work_that_ended_without_an_answer_is_lost(state: str) -> None:
    server = Server(HERE)
    with asked(server, REQUEST) as (_, (call,)):
        soon(lambda: len(server.submitted) == 1)
        server.said[server.submitted[0][0]] = state
        with pytest.raises(WorkerLost, match=f"ended its work as {state.lower()}, without an answer"):
            call.result(30)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (text_of({LOST: "worker slot 0 ended"}), "worker slot 0 ended"),
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        (text_of({"clients": {"0": {}}}), "cannot be read"),
    ],
)
def test_what_is_no_answer_is_a_lost_worker(text: str, said: str) -> None:
    server = Server(HERE)
    with asked(server, REQUEST) as (_, (call,)):
        soon(lambda: len(server.submitted) == 1)
        server.answer(0, text)
        with pytest.raises(WorkerLost, match=said):
            call.result(30)


def test_a_host_that_lost_a_request_may_be_ending_and_gets_no_other_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefect_pool, "REST", 0.6)
    server = Server(HERE)
    with asked(server, REQUEST, REQUEST) as (_, (first, _second)):
        soon(lambda: len(server.submitted) == 1)
        server.answer(0, text_of({LOST: "the worker slots are closed"}))
        with pytest.raises(WorkerLost, match="the worker slots are closed"):
            first.result(30)
        time.sleep(0.2)
        assert len(server.submitted) == 1
        soon(lambda: len(server.submitted) == 2)


def test_hosts_that_serve_others_are_named() -> None:
    old = replace(HERE, name="old", version="shoal 0.0.1 (12345678), torch 2.11.0", id="c3")
    gpu = replace(HERE, name="gpu", device="cuda", id="d4")
    with asked(Server(old, gpu), REQUEST, empty=0.3) as (_, (call,)), pytest.raises(ClusterLost) as lost:
        call.result(30)
    said = str(lost.value)
    assert f"this run wants cpu and {version_here()}, and gpu has cuda, old has shoal 0.0.1 (12345678), torch" in said
    assert "go on with `shoal run --resume this`" in said


def test_a_server_that_is_silent_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(HERE)
    with asked(server, REQUEST) as (_, (call,)):
        soon(lambda: len(server.submitted) == 1)
        monkeypatch.setattr(prefect_pool, "PATIENCE", 0.5)
        server.away = True
        with pytest.raises(ClusterLost, match=r"the Prefect server at http://127\.0\.0\.1:4200/api has not answered"):
            call.result(30)


def test_a_server_that_is_stopped_and_keeps_whoever_asks_waiting_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    server, stopped = Server(HERE), threading.Event()
    monkeypatch.setattr(prefect_pool, "LEAVING", 0.1)
    with asked(server, REQUEST) as (_, (call,)):
        soon(lambda: len(server.submitted) == 1)
        monkeypatch.setattr(prefect_pool, "PATIENCE", 0.5)
        server.hosts = lambda: stopped.wait(60) and {}  # type: ignore[method-assign, assignment, return-value]
        with pytest.raises(ClusterLost, match="has not answered for"):
            call.result(30)
        stopped.set()


def test_a_server_that_was_started_anew_has_forgotten_what_was_not_begun() -> None:
    server = Server(HERE)
    server.usually = "SCHEDULED"
    with asked(server, REQUEST) as (_, (call,)):
        soon(lambda: len(server.submitted) == 1)
        time.sleep(1.0)
        assert not call.done()
        server.away = True
        time.sleep(0.2)
        server.away = False
        with pytest.raises(WorkerLost, match="was not told of a request"):
            call.result(30)


def test_who_lets_the_hosts_go_takes_all_requests_back() -> None:
    server = Server(HERE)
    with asked(server, REQUEST, REQUEST) as (pool, calls):
        soon(lambda: len(server.submitted) == 1)
        pool.close()
        for call in calls:
            with pytest.raises(WorkerLost, match="were let go"):
                call.result(30)
    assert server.cancelled == [server.submitted[0][0]]
    assert len(server.submitted) == 1


@pytest.mark.parametrize("name", ["vm", "gpu-1.example.org", "a+b &=%-?"])
def test_the_key_of_its_task_says_what_a_host_is(name: str, tmp_path: Path) -> None:
    host = replace(Host.here(2, "cuda"), name=name)
    assert Host.of(task_of(host, lambda: None, tmp_path).task_key) == host
    assert task_of(host, lambda: None, tmp_path).with_options(persist_result=True).task_key.startswith("shoal-work?")


@pytest.mark.parametrize("key", ["train-1a2b3c", "shoal-work?name=x-1a2b", "shoal-work?slots=many&name=x-1a2b", ""])
def test_other_tasks_are_no_hosts(key: str) -> None:
    assert Host.of(key) is None


def test_the_server_is_that_of_the_environment(small: Callable[..., Any]) -> None:
    with pytest.raises(SettingsError, match=r"the Prefect server is that of PREFECT_API_URL"):
        small(workers={"runner": "prefect", "address": "http://127.0.0.1:4200/api"})
    assert small(workers={"runner": "prefect", "depot": "s3://bucket/shoal"}).workers.elsewhere


# --- what a host does


class Asker:
    """The server, as a host sees it."""

    def __init__(self, text: str | None = None) -> None:
        self.text, self.told, self.waits, self.refusals = text, [], True, 0  # type: ignore[var-annotated]

    def request(self, run: UUID) -> str | None:
        return self.text

    def wanted(self, run: UUID) -> bool:
        return self.waits

    def answer(self, run: UUID, text: str) -> None:
        if self.refusals:
            self.refusals -= 1
            raise httpx.ConnectError("away")
        self.told.append(plain_of(text))


@pytest.fixture
def in_a_task_run(monkeypatch: pytest.MonkeyPatch) -> None:
    import prefect

    monkeypatch.setattr(prefect, "runtime", SimpleNamespace(task_run=SimpleNamespace(id=str(uuid4()))))
    monkeypatch.setattr(serving, "LOOK", 0.02)
    monkeypatch.setattr(serving, "PAUSES", (0.0, 0.0))


def desk_of(asker: Asker, call: Callable[[Any], Answer]) -> Any:
    return contextlib.closing(Desk(asker, call))  # type: ignore[arg-type]


@pytest.mark.usefixtures("in_a_task_run")
def test_a_host_answers_what_its_slots_answer(tmp_path: Path) -> None:
    asker = Asker(text_of(replace(REQUEST, run=tmp_path).plain()))
    asker.refusals = 2
    with desk_of(asker, lambda request: Evaluated({"acc": float(request.round)}, 1.0)) as desk:
        assert desk.carry_out() is None
    assert asker.told == [{"metrics": {"acc": 3.0}, "seconds": 1.0, "judged": {}}]


@pytest.mark.usefixtures("in_a_task_run")
def test_a_slot_that_is_lost_is_told_at_once(tmp_path: Path) -> None:
    def call(_: Any) -> Answer:
        raise WorkerLost("worker slot 0 ended in the middle of its work")

    asker = Asker(text_of(replace(REQUEST, run=tmp_path).plain()))
    with desk_of(asker, call) as desk:
        desk.carry_out()
    assert asker.told == [{LOST: "worker slot 0 ended in the middle of its work"}]


@pytest.mark.usefixtures("in_a_task_run")
def test_a_host_that_is_ended_tells_what_it_had_begun(tmp_path: Path) -> None:
    begun, ended = threading.Event(), threading.Event()

    def call(_: Any) -> Answer:
        begun.set()
        ended.wait(30)
        time.sleep(0.3)
        raise WorkerLost("the worker slots are closed")

    asker = Asker(text_of(replace(REQUEST, run=tmp_path).plain()))
    with ThreadPoolExecutor(1) as thread:
        with desk_of(asker, call) as desk:
            thread.submit(desk.carry_out)
            begun.wait(30)
            ended.set()
        assert asker.told == [{LOST: "the worker slots are closed"}]


@pytest.mark.usefixtures("in_a_task_run")
@pytest.mark.parametrize("text", [text_of(REQUEST.plain()), '{"do": "dance"}', "x"])
def test_what_a_host_cannot_do_it_says(text: str) -> None:
    asker = Asker(text)
    with desk_of(asker, lambda _: Failed("never")) as desk:
        desk.carry_out()
    assert "error" in asker.told[0]
    assert asker.told[0]["error"] != "never"


@pytest.mark.usefixtures("in_a_task_run")
def test_a_request_that_was_taken_back_is_not_begun() -> None:
    with desk_of(Asker(None), lambda _: Failed("never")) as desk:
        assert desk.carry_out().type == "CANCELLED"


@pytest.mark.usefixtures("in_a_task_run")
def test_work_that_nobody_waits_for_any_more_is_ended(tmp_path: Path) -> None:
    asker = Asker(text_of(replace(REQUEST, run=tmp_path).plain()))
    begun = threading.Event()

    def call(request: Any) -> Answer:
        assert request.deadline.why(9e9, 9e9) is None, "however long it takes"
        begun.set()
        soon(lambda: request.deadline.why(0.0, 0.0) is not None)
        raise WorkerLost("worker slot 0 was ended")

    with desk_of(asker, call) as desk, ThreadPoolExecutor(1) as thread:
        done = thread.submit(desk.carry_out)
        begun.wait(30)
        asker.waits = False
        assert done.result(30).type == "CANCELLED"
    assert not asker.told
