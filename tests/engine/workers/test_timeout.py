"""Workers that are stopped or loop for ever are ended, their clients trained elsewhere, and slow ones left alone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from shoal.engine.messages.wire import Failure, Train
from shoal.engine.settings.hardware import resolve_timeout
from shoal.engine.store.run_events import Event
from shoal.engine.workers import worker_processes
from shoal.engine.workers.worker_processes import PROGRESS, Progress, WorkerLost, WorkerProcess, WorkerProcesses
from shoal.lifecycle.starting import new_run
from shoal.review.results.clusters import keep_clusters
from tests.orders import obedient
from tests.runs import go_on, numbers, straight

Make = Callable[..., Any]
SHORT = 20 / 60
"""Minutes of a timeout: longer than any work of these tests that is not made to hang, on a busy machine too."""
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


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are looked at often."""
    monkeypatch.setattr(worker_processes, "POLL_SECONDS", 0.05)


def lost(run: Any) -> list[str]:
    return [e.message for e in run.events() if e.kind == "slot_lost"]


@pytest.mark.slow
@pytest.mark.parametrize("slots", [1, 2])
def test_a_stopped_worker_is_ended_and_its_clients_are_done(home: Path, small: Make, orders: Path, slots: int) -> None:
    settings = small(workers={"slots": slots})
    whole = straight(settings)
    with WorkerProcesses(slots, timeout=SHORT) as pool:
        stopped: list[int] = []

        def watch(event: Event) -> None:
            if event.kind == "round_started" and event.round == 2:
                for worker in pool.processes:
                    os.kill(worker.process.pid, signal.SIGSTOP)
                    stopped.append(worker.process.pid)

        run = straight(settings, pool.call, [watch], slots=slots)
    assert len(stopped) == slots
    assert numbers(run) == numbers(whole)
    assert any("finished neither a client nor a step" in message for message in lost(run))
    assert all(not Path(f"/proc/{pid}/stat").exists() for pid in stopped)


@pytest.mark.slow
def test_a_looping_worker_is_ended_in_a_first_round_too(home: Path, small: Make, orders: Path) -> None:
    settings = small(workers={"slots": 2})
    whole = straight(settings)
    with WorkerProcesses(2, timeout=SHORT) as pool:
        (orders / "once-1").touch()
        run = straight(settings, pool.call, slots=2)
        assert not list(orders.iterdir())
    assert numbers(run) == numbers(whole)
    assert len(lost(run)) == 1
    assert "finished neither a client nor a step in 0.333 minutes (workers.timeout) and was ended" in lost(run)[0]
    assert [e.client for e in run.events() if e.kind == "client_failed"] == [1]


@pytest.mark.slow
def test_who_loops_at_every_try_is_left_out_alone(home: Path, small: Make, orders: Path) -> None:
    """On one worker, where the others wait behind the one that loops."""
    settings = small(participation={"retries": 0}, rounds=2)
    with WorkerProcesses(1, timeout=SHORT) as pool:
        (orders / "always-0").touch()
        run = straight(settings, pool.call)
    clients = run.table("clients")
    assert list(clients["client"]) == [1, 2, 1, 2]
    assert list(run.table("rounds")["left_out"]) == [1, 1]
    out = [(e.round, e.client) for e in run.events() if e.kind == "client_left_out"]
    assert out == [(1, 0), (2, 0)]


def test_a_worker_that_says_that_it_goes_on_has_all_the_time_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = multiprocessing.Pipe()
    process = WorkerProcess(0, "cpu", timeout=0.5 / 60)
    monkeypatch.setattr(process, "ready", lambda: (ours, None))

    def work() -> None:
        theirs.recv()
        for _ in range(20):
            time.sleep(0.1)
            theirs.send(PROGRESS)
        theirs.send(Failure("it ended"))

    threading.Thread(target=work, daemon=True).start()
    assert process.call(Train(Path("/nowhere"), 1, (), ())) == Failure("it ended")
    threading.Thread(target=theirs.recv, daemon=True).start()
    with pytest.raises(WorkerLost, match="finished neither a client nor a step"):
        process.call(Train(Path("/nowhere"), 1, (), ()))


def test_steps_are_progress() -> None:
    """A client may take longer than the timeout as long as its optimiser steps; words are sent now and then."""
    told: list[float] = []
    progress = Progress(lambda: told.append(time.monotonic()))
    handle = register_optimizer_step_post_hook(progress)
    try:
        weight = torch.nn.Parameter(torch.zeros(2))
        optimiser = torch.optim.SGD([weight], lr=0.1)
        for _ in range(100):
            weight.sum().backward()
            optimiser.step()
    finally:
        handle.remove()
    assert len(told) == 1


@pytest.mark.parametrize(
    ("timeout", "device", "minutes"),
    [("auto", "cpu", 30.0), ("auto", "cuda", None), (None, "cpu", None), (5, "cuda", 5.0)],
)
def test_the_timeout_is_a_setting(small: Make, timeout: Any, device: str, minutes: float | None) -> None:
    assert resolve_timeout(small(workers={"timeout": timeout}).workers, device) == minutes


@pytest.mark.slow
def test_a_looping_evaluation_is_ended_and_done_again(home: Path, small: Make, orders: Path) -> None:
    settings = small()
    whole = straight(settings)
    with WorkerProcesses(1, timeout=SHORT) as pool:

        def watch(event: Event) -> None:
            if event.kind == "round_started" and event.round == 2:
                (orders / "once-evaluate").touch()

        run = straight(settings, pool.call, [watch])
        assert numbers(run) == numbers(whole)
        assert "and was ended" in lost(run)[0]
        (orders / "once-assign").touch()
        assert keep_clusters(run, pool.call)
        assert not list(orders.iterdir())


@pytest.mark.slow
def test_an_evaluation_that_always_loops_ends_the_run_resumable(home: Path, small: Make, orders: Path) -> None:
    settings = small(rounds=1)
    run = new_run(settings)
    with WorkerProcesses(1, timeout=SHORT) as pool:
        (orders / "always-evaluate").touch()
        with pytest.raises(WorkerLost, match="and was ended"):
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
