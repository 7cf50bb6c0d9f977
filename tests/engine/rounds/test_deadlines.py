"""Workers that are stopped or loop for ever are ended, their clients done elsewhere, and slow ones left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from shoal.engine.messages.wire import Answer, Request, Train
from shoal.engine.rounds import deadlines, dispatch
from shoal.engine.rounds.deadlines import Deadline, Limits, WorkTimes
from shoal.engine.rounds.outcomes import RoundFailed
from shoal.engine.store.run_events import Event
from shoal.engine.workers import worker_processes
from shoal.engine.workers.worker import Worker
from shoal.engine.workers.worker_processes import WorkerLost, WorkerProcesses
from shoal.lifecycle.starting import new_run
from shoal.methods.contract.base import Server
from shoal.methods.registry import BUILT_IN as METHODS
from shoal.review.results.clusters import keep_clusters
from tests.orders import obedient
from tests.runs import go_on, numbers, straight

Make = Callable[..., Any]
LIMITS = Limits(10.0, 5.0, 1000.0)


def times(*sizes: int) -> WorkTimes:
    return WorkTimes(LIMITS, sizes or (10, 10, 20))


# --- how long work may take -------------------------------------------------------------------------------------------


def test_nobody_is_ended_in_a_first_round_before_something_was_measured() -> None:
    deadline = times().cohort("", [[0], [1, 2]], lambda client: None, lambda client: None)
    assert deadline.reason(999.0, 0.0) is None
    assert deadline.reason(1001.0, 0.0) == "client 0, which took 1001 s, longer than the 1000 s of its deadline"


def test_what_others_took_meanwhile_counts_in_a_first_round_too() -> None:
    known = times()
    deadline = known.cohort("", [[0]], lambda client: None, lambda client: None)
    assert deadline.reason(60.0, 0.0) is None
    known.trained("", 1, 3.0)
    assert deadline.reason(29.0, 0.0) is None
    assert "30 s" in str(deadline.reason(31.0, 0.0))
    assert known.allowed("", [2]) == 60.0, "twice the samples"
    known.trained("", 2, 0.1)
    assert known.allowed("", [2]) == 5.0, "what a client took itself, but no less than the least"
    known.trained("", 1, 1.0)
    assert known.allowed("", [1]) == 30.0, "the longest counts"
    assert known.allowed("", [1, 2]) == pytest.approx(31.0)


def test_what_is_allowed_is_not_asked_of_all_clients_that_were_seen() -> None:
    """They may be a million, and it is asked many times in a round."""

    class Closed(array):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[float]:
            raise AssertionError("all clients were looked at")

    known = times()
    known.trained("", 2, 0.5)
    known.trained("", 1, 3.0)
    clients = known._stages[""].clients
    clients._seconds = Closed("d", clients._seconds)
    with pytest.raises(AssertionError, match="all clients"):
        max(clients._seconds)
    known.trained("", 2, 1.0)
    assert known.allowed("", [0, 1]) == 60.0


def test_rounds_of_another_kind_say_nothing() -> None:
    known = times()
    known.trained("push", 0, 0.01)
    assert known.allowed("train", [0]) == 1000.0
    assert known.allowed("push", [0]) == 5.0


def test_each_client_of_a_cohort_has_its_time_and_is_measured() -> None:
    known, done = times(), dict.fromkeys(range(3), 0)
    done[2] = 7  # from before: what the round was cut short with does not count as done now
    deadline = known.cohort("", [[0], [1], [2]], lambda client: done[client], lambda client: None)
    assert deadline.reason(4.0, 0.0) is None
    done[0] = 1
    assert deadline.reason(4.5, 0.0) is None
    assert deadline.reason(48.0, 0.0) is None, "client 0 took 4.5 s, so that 45 s more are allowed"
    assert "client 1," in str(deadline.reason(50.0, 0.0))
    done[1] = 1
    assert deadline.reason(50.0, 0.0) is None
    assert "client 2," in str(deadline.reason(9e9, 0.0))
    done[2] = 8
    assert deadline.reason(50.1, 0.0) is None
    assert "the answer of a cohort" in str(deadline.reason(56.0, 0.0))


def test_who_failed_is_not_waited_for_and_measures_nobody() -> None:
    known, done, failed = times(), dict.fromkeys(range(3), 0), dict.fromkeys(range(3), 0)
    failed[0] = failed[1] = 5  # marks of a try before this one
    deadline = known.cohort("", [[0], [1, 2]], lambda client: done[client], lambda client: failed[client])
    failed[0] = 6
    assert deadline.reason(900.0, 0.0) is None
    assert known.allowed("", [1]) == 1000.0, "nothing is known of a client that comes through"
    assert "clients 1, 2," in str(deadline.reason(2901.0, 0.0)), "their own 2000 s begin where client 0 failed"
    done[1] = 1
    assert "clients 1, 2," in str(deadline.reason(2901.0, 0.0))
    failed[2] = 1
    assert deadline.reason(2901.0, 0.0) is None
    assert known.allowed("", [1]) == pytest.approx(10 * 2001 / 2, abs=1), "the half of their time"
    assert "the answer of a cohort" in str(deadline.reason(2907.0, 0.0))


def test_a_worker_that_uses_no_core_is_stopped() -> None:
    deadline = times().cohort("", [[0, 1]], lambda client: None, lambda client: None)
    assert deadline.reason(100.0, 4.9) is None
    assert deadline.reason(100.0, 5.1) == ("clients 0, 1: it is stopped or blocked, since it used no core for 5 s")


def test_evaluations_are_measured_and_the_last_one_is_another() -> None:
    known = times()
    assert known.evaluation(1, final=False).reason(999.0, 0.0) is None
    known.evaluated(2.0)
    known.evaluated(1.0)
    assert known.evaluation(2, final=False).reason(19.0, 0.0) is None
    assert "evaluation of round 2, which took 21 s" in str(known.evaluation(2, final=False).reason(21.0, 0.0))
    assert known.evaluation(3, final=True).reason(999.0, 0.0) is None


def test_deadlines_can_be_switched_off_and_doubled(small: Make) -> None:
    off = Limits.from_settings(small(workers={"timeout_factor": 0}).workers)
    assert Deadline(off, "this").reason(1e9, 1e9) is None
    double = Limits.from_settings(small(workers={"timeout_factor": 2}).workers)
    assert double == Limits(20.0, 600.0, 43200.0)


@pytest.mark.long
def test_methods_whose_rounds_differ_say_what_comes(small: Make, home: Path) -> None:
    from tests.engine.test_recorded_bits import CASES, case_settings

    def stages(name: str, **changes: Any) -> list[str]:
        settings, found = case_settings(CASES[name]), []
        run = new_run(settings)
        kind = METHODS[settings.method.name]
        original = kind.aggregate

        def aggregate(self: Any, server: Server, updates: Any) -> Server:
            found.append(self.stage(server))
            return original(self, server, updates)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kind, "aggregate", aggregate)
            go_on(run)
        return found

    assert {"push", "pull", "train"} <= set(stages("cfcl"))
    assert set(stages("uifca, from k-FED, held out")) >= {"centres", "learn"}
    assert set(stages("fedavg")) == {""}


# --- real workers -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Workers of this module obey orders: their parent imports what they need only once."""
    with obedient(tmp_path_factory.mktemp("orders")) as folder:
        yield folder


@pytest.fixture
def orders(forks: Path) -> Iterator[Path]:
    """The folder of the orders, empty before and after."""
    yield forks
    for order in forks.iterdir():
        order.unlink()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines for clients of a tenth of a second."""
    monkeypatch.setattr(worker_processes, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(deadlines, "LONGEST_TIME_FACTOR", 4.0)
    monkeypatch.setattr(deadlines, "MIN_DEADLINE_SECONDS", 1.5)
    monkeypatch.setattr(deadlines, "FIRST_DEADLINE_SECONDS", 600.0)


@pytest.fixture
def quick_first(monkeypatch: pytest.MonkeyPatch, quick: None) -> None:
    monkeypatch.setattr(deadlines, "FIRST_DEADLINE_SECONDS", 4.0)


def lost(run: Any) -> list[str]:
    return [e.message for e in run.events() if e.kind == "slot_lost"]


@pytest.mark.long
@pytest.mark.parametrize("slots", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_stopped_worker_is_ended_and_its_clients_are_done(
    home: Path, small: Make, quick: None, orders: Path, slots: int
) -> None:
    settings = small(workers={"slots": slots})
    whole = straight(settings)
    with WorkerProcesses(slots) as pool:
        stopped: list[int] = []

        def watch(event: Event) -> None:
            if event.kind == "round_started" and event.round == 2:
                for worker in pool.processes:
                    os.kill(worker.process.pid, signal.SIGSTOP)
                    stopped.append(worker.process.pid)

        run = straight(settings, pool.call, [watch], slots=slots)
    assert len(stopped) == slots
    assert numbers(run) == numbers(whole)
    assert any("it used no core" in message for message in lost(run))
    assert all(not Path(f"/proc/{pid}/stat").exists() for pid in stopped)


def test_a_looping_worker_is_ended_in_a_first_round_too(home: Path, small: Make, quick: None, orders: Path) -> None:
    settings = small(workers={"slots": 2})
    whole = straight(settings)
    with WorkerProcesses(2) as pool:
        (orders / "once-1").touch()
        run = straight(settings, pool.call, slots=2)
        assert not list(orders.iterdir())
    assert numbers(run) == numbers(whole)
    assert len(lost(run)) == 1
    assert "was ended at client 1, which took" in lost(run)[0]
    assert [e.client for e in run.events() if e.kind == "client_failed"] == [1]


@pytest.mark.slow
def test_who_loops_at_every_try_is_left_out_alone(home: Path, small: Make, quick_first: None, orders: Path) -> None:
    """On one worker, where the others wait behind the one that loops."""
    settings = small(participation={"retries": 0}, rounds=2)
    with WorkerProcesses(1) as pool:
        (orders / "always-0").touch()
        run = straight(settings, pool.call)
    clients = run.table("clients")
    assert list(clients["client"]) == [1, 2, 1, 2]
    assert list(run.table("rounds")["left_out"]) == [1, 1]
    out = [(e.round, e.client) for e in run.events() if e.kind == "client_left_out"]
    assert out == [(1, 0), (2, 0)]


def test_clients_that_fail_late_are_no_worker_that_hangs(
    home: Path, small: Make, quick: None, orders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six clients in one cohort; four need a second each, longer together than the deadline of the next."""
    monkeypatch.setattr(dispatch, "MAX_COHORTS_PER_SLOT", 1)
    participation = {"retries": 0, "minimum": 0.1}
    settings = small(partition={"clients": 6}, data={"limit": 300}, rounds=1, participation=participation)
    for client in range(1, 5):
        (orders / f"late-{client}").touch()
    with WorkerProcesses(1) as pool:
        run = straight(settings, pool.call)
    assert not lost(run)
    assert sorted(run.table("clients")["client"]) == [0, 5]
    failed = {e.client: e.message for e in run.events() if e.kind == "client_failed"}
    assert failed == dict.fromkeys(range(1, 5), "late")


@pytest.mark.slow
def test_a_looping_evaluation_is_ended_and_done_again(home: Path, small: Make, quick_first: None, orders: Path) -> None:
    settings = small()
    whole = straight(settings)
    with WorkerProcesses(1) as pool:

        def watch(event: Event) -> None:
            if event.kind == "round_started" and event.round == 2:
                (orders / "once-evaluate").touch()

        run = straight(settings, pool.call, [watch])
        assert numbers(run) == numbers(whole)
        assert "was ended at evaluation of round 2" in lost(run)[0]
        (orders / "once-assign").touch()
        assert keep_clusters(run, pool.call)
        assert not list(orders.iterdir())


@pytest.mark.slow
def test_an_evaluation_that_always_loops_ends_the_run_resumable(
    home: Path, small: Make, quick_first: None, orders: Path
) -> None:
    settings = small(rounds=1)
    run = new_run(settings)
    with WorkerProcesses(1) as pool:
        (orders / "always-evaluate").touch()
        with pytest.raises(WorkerLost, match="was ended at evaluation of round 1"):
            go_on(run, pool.call)
    assert run.status().state == "failed"
    go_on(run)
    assert numbers(run) == numbers(straight(settings))


PROGRAM = """
import sys
from pathlib import Path
from shoal.cli.main import entry
if __name__ == "__main__":
    sys.argv = ["shoal", "run", "--resume", sys.argv[1]]
    entry()
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("stop", "all_of_them"), [pytest.param(signal.SIGTERM, True, marks=pytest.mark.slow), (signal.SIGINT, False)]
)
def test_a_signal_ends_a_run_whose_workers_are_stopped(
    home: Path, small: Make, stop: signal.Signals, all_of_them: bool
) -> None:
    """Also where the process is stopped that workers are forked from, which is the one that says that they ended."""
    settings = small(rounds=6, workers={"slots": 2})
    run = new_run(settings)
    (home / "go.py").write_text(PROGRAM)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, str(home / "go.py"), str(run.path)]
    process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
    stopped: list[psutil.Process] = []
    try:
        while not any(e.kind == "client_finished" for e in run.events()):
            assert process.poll() is None
            time.sleep(0.02)
        (parent,) = (p for p in psutil.Process(process.pid).children() if "forkserver" in " ".join(p.cmdline()))
        stopped = parent.children() + [parent] * all_of_them
        for child in stopped:
            child.suspend()
        process.send_signal(stop)
        _, said = process.communicate(timeout=120)  # a hang fails here
    finally:
        process.kill()
        left = [child for child in stopped if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
        for child in left:
            child.kill()
    assert process.returncode == 130
    assert "Traceback" not in said
    assert f"shoal run --resume {run.name}" in said.replace("\n", "")
    assert run.status().state == "interrupted"
    go_on(run)
    assert numbers(run) == numbers(straight(settings))


def test_whatever_asks_the_process_to_end_interrupts_the_run(home: Path, small: Make) -> None:
    """Prefect makes a signal of its own of SIGTERM."""

    class Terminated(BaseException):
        pass

    def stop(event: Event) -> None:
        if event.kind == "client_finished":
            raise Terminated

    run = new_run(small(rounds=1))
    with pytest.raises(Terminated):
        go_on(run, observers=[stop])
    assert run.status().state == "interrupted"
    assert [e.kind for e in run.events()][-1] == "interrupted"


# --- whose fault it is ------------------------------------------------------------------------------------------------


def losing(guilty: set[int]) -> Callable[[Request], Answer]:
    """A worker that is lost at the clients that are guilty, after it did those before them."""
    worker = Worker()

    def call(request: Request) -> Answer:
        if isinstance(request, Train):
            done_groups: list[tuple[int, ...]] = []
            for group in request.groups:
                if guilty & set(group):
                    worker.handle(Train(request.run, request.round, request.clients, tuple(done_groups)))
                    raise WorkerLost("gone")
                done_groups.append(group)
        return worker.handle(request)

    return call


def test_only_who_was_at_work_is_charged_with_a_lost_worker(home: Path, small: Make) -> None:
    """Six clients in one cohort; two of them lose their worker at each try; there is no second try."""
    settings = small(partition={"clients": 6}, rounds=1, participation={"retries": 0}, data={"limit": 300})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "MAX_COHORTS_PER_SLOT", 1)
        run = straight(settings, losing({0, 3}))
    assert list(run.table("clients")["client"]) == [1, 2, 4, 5]
    failed = [e.client for e in run.events() if e.kind == "client_failed"]
    assert sorted(failed) == [0, 3]


@pytest.mark.long
def test_workers_that_never_work_end_the_run(home: Path, small: Make) -> None:
    with pytest.raises(RoundFailed, match="0 of 3 clients succeeded"):
        straight(small(), losing({0, 1, 2}))


@pytest.mark.long
def test_workers_that_never_work_end_the_run_after_some_tries(home: Path, small: Make) -> None:
    """Forty clients, each of which would otherwise be charged on its own, twice."""
    calls: list[Request] = []
    lose = losing(set(range(40)))

    def call(request: Request) -> Answer:
        calls.append(request)
        return lose(request)

    with pytest.raises(RoundFailed, match="0 of 40 clients succeeded"):
        straight(small(partition={"clients": 40}, data={"limit": 400}), call)
    assert len(calls) < 40
