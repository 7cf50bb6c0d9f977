"""The engine: same bits straight through, resumed, killed, or on more slots; failures handled by rule."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.engine.messages.wire import Answer, Failure, Request, Train, TrainAnswer
from shoal.engine.rounds.outcomes import RoundFailed
from shoal.engine.store import checkpoint
from shoal.engine.store.checkpoint import rounds_done
from shoal.engine.store.codec import StoreError
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.store.run_events import Event
from shoal.engine.store.run_folder import RunError, RunFolder
from shoal.engine.store.status import FAILED, FINISHED
from shoal.engine.workers.worker import Worker
from shoal.engine.workers.worker_processes import WorkerProcesses
from shoal.lifecycle.driving import drive
from shoal.lifecycle.starting import new_run
from shoal.review.results.result import run_result
from tests.conftest import one_quick
from tests.runs import go_on, numbers, stopped, stopped_at, straight

Make = Callable[..., Any]


@pytest.mark.parametrize(("samples", "told"), one_quick([(30, True), (3_000, False)]))
def test_messages_that_exceed_the_data_are_told(home: Path, small: Make, samples: int, told: bool) -> None:
    points = {"name": "gaussian", "limit": None, "options": {"samples": samples, "clusters": 3}}
    run = straight(small(data=points, method={"name": "fedkmeans"}, partition={"kind": "iid", "clients": 2}, rounds=6))
    messages = [event.message for event in run.events() if event.kind == "messages_exceed_data"]
    assert bool(messages) == told
    assert all("MB in all, more than their samples are" in message for message in messages)


def test_a_run_leaves_its_folder(home: Path, small: Make) -> None:
    run = straight(small())
    assert run.status().state == FINISHED
    rounds, clients = run.table("rounds"), run.table("clients")
    assert list(rounds["round"]) == [1, 2, 3]
    assert len(clients) == 9
    assert {"acc", "nmi", "ari", "purity"} <= set(rounds.columns)
    assert {"knn", "probe", "alignment", "uniformity"} <= set(run_result(run).metrics)
    assert rounds_done(run) == [0, 1, 2, 3]
    kept = [r for r in rounds_done(run) if RoundPaths(run.path, r).server.exists()]
    assert kept == [2, 3]
    assert not (run.work / "0003").exists()


def test_bytes_are_those_of_the_messages(home: Path, small: Make) -> None:
    run = straight(small(rounds=1))
    saved = checkpoint.load_round(run, 1).server.tensors
    size = sum(t.numel() * t.element_size() for t in saved.values())
    row = run.table("clients").iloc[0]
    assert row["bytes_up"] == row["bytes_down"] == size + 8  # one fact beside the tensors
    assert run.table("rounds").iloc[0]["bytes_up"] == 3 * row["bytes_up"]


def test_one_slot_equals_two_processes(home: Path, small: Make) -> None:
    here = straight(small())
    with WorkerProcesses(2) as slots:
        there = straight(small(), slots.call)
    assert numbers(here) == numbers(there)


@pytest.mark.long
def test_interrupted_between_any_two_events_resumes_to_the_same_bits(home: Path, small: Make) -> None:
    whole = straight(small(rounds=2))
    events = len([e for e in whole.events() if e.kind != "finished"])
    for stop in range(1, events, 3):
        run = stopped_at(small(rounds=2), stop)
        assert run.status().state == "interrupted"
        go_on(run)
        assert numbers(run) == numbers(whole), f"stopped at event {stop}"


def test_an_interrupted_run_waits_for_the_removal_of_closed_rounds(
    home: Path, small: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = shutil.rmtree

    def slow(path: Path, **how: Any) -> None:
        if path.name == "0001":
            assert threading.current_thread() is not threading.main_thread()  # the next round trains meanwhile
            time.sleep(0.5)
        remove(path, **how)

    monkeypatch.setattr(shutil, "rmtree", slow)
    assert not list(stopped(small(), "round_finished", 1).work.iterdir())


@pytest.mark.parametrize("delay", [*(pytest.param(seconds, marks=pytest.mark.slow) for seconds in (0.0, 0.7)), 1.6])
def test_killed_process_tree_resumes_to_the_same_bits(home: Path, small: Make, delay: float) -> None:
    settings = small(rounds=4)
    whole = straight(settings)
    run = new_run(settings)
    code = (
        "from shoal.engine.store.run_folder import RunFolder; from shoal.engine.workers.worker_processes import "
        "WorkerProcesses;"
        "from shoal.lifecycle.driving import drive;"
        "from pathlib import Path; import sys; drive(RunFolder(Path(sys.argv[1])))"
    )
    (home / "go.py").write_text(f"if __name__ == '__main__':\n    {code}\n")
    process = subprocess.Popen([sys.executable, str(home / "go.py"), str(run.path)], start_new_session=True)
    deadline = time.monotonic() + 120
    while not list(run.path.glob("rounds/0001")) and not list(run.work.glob("*/done-*")):
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(delay)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    go_on(run)
    assert numbers(run) == numbers(whole)


@pytest.mark.long
def test_full_disk_while_checkpointing_loses_nothing(home: Path, small: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = straight(small())
    run = new_run(small())
    real = os.fsync

    def full(descriptor: int) -> None:
        if ".0002.tmp" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"the disk is full.*--resume"):
        go_on(run)
    assert run.status().state == FAILED
    assert rounds_done(run) == [0, 1]
    monkeypatch.setattr(os, "fsync", real)
    go_on(run)
    assert numbers(run) == numbers(whole)


def test_a_run_in_use_is_refused(home: Path, small: Make) -> None:
    run = new_run(small())
    with run.locked(), pytest.raises(RunError, match=f"in use by another process .pid {os.getpid()}"):
        go_on(RunFolder(run.path))


def failing(client: int, rounds: tuple[int, ...], times: int) -> Callable[[Request], Answer]:
    """A worker on which one client fails a number of times in some rounds."""
    worker = Worker()
    left = dict.fromkeys(rounds, times)

    def call(request: Request) -> Answer:
        if not isinstance(request, Train) or not left.get(request.round):
            return worker.handle(request)
        others = tuple(each for each in request.clients if each.client != client)
        answer = worker.handle(replace(request, clients=others))
        assert isinstance(answer, TrainAnswer)
        if others == request.clients:
            return answer
        left[request.round] -= 1
        return TrainAnswer({**answer.clients, client: Failure(f"client {client} fell over")})

    return call


@pytest.mark.long
def test_a_failed_client_is_tried_again(home: Path, small: Make) -> None:
    whole = straight(small())
    run = straight(small(), failing(1, (2,), times=1))
    assert numbers(run) == numbers(whole)
    assert [e.client for e in run.events() if e.kind == "client_failed"] == [1]


def test_a_client_that_keeps_failing_is_left_out(home: Path, small: Make) -> None:
    run = straight(small(), failing(1, (2,), times=9))
    rounds = run.table("rounds")
    assert list(rounds["left_out"]) == [0, 1, 0]
    assert [e.client for e in run.events() if e.kind == "client_left_out"] == [1]


@pytest.mark.long
def test_too_few_clients_stop_the_run_resumable(home: Path, small: Make) -> None:
    strict = small(participation={"minimum": 1.0})
    whole = straight(strict)
    run = new_run(strict)
    with pytest.raises(RoundFailed, match="2 of 3 clients succeeded, 3 are needed"):
        go_on(run, failing(1, (2,), times=9))
    go_on(run)
    assert numbers(run) == numbers(whole)


def test_a_killed_worker_loses_nothing(home: Path, small: Make) -> None:
    whole = straight(small())
    with WorkerProcesses(2) as slots:
        killed = []

        def watch(event: Event) -> None:
            if event.kind == "client_finished" and not killed:
                victim = next(s for s in slots.processes if s.process is not None and s.process.is_alive())
                os.kill(victim.process.pid, signal.SIGKILL)
                killed.append(victim.number)

        run = straight(small(), slots.call, [watch])
    assert killed
    assert numbers(run) == numbers(whole)


def test_nan_updates_never_reach_the_server(home: Path, small: Make) -> None:
    with pytest.raises(RoundFailed, match=r"client \d.*(not finite|NaN)"):
        straight(small(local={"lr": 1e30, "optimiser": "sgd"}))


def test_partial_participation_is_a_seeded_draw(home: Path, small: Make) -> None:
    settings = small(participation={"fraction": 0.34})
    one, two = straight(settings), straight(settings)
    assert list(one.table("rounds")["clients"]) == [1, 1, 1]
    assert numbers(one) == numbers(two)


@pytest.mark.long
def test_drive_gives_the_result(home: Path, small: Make) -> None:
    run = new_run(small(rounds=1, tracking={"mlflow": True, "model": False}))
    result = drive(run)
    assert result.status == FINISHED
    assert result.rounds == 1
    assert result.mlflow_run
    assert (run.path / "report.html").is_file()
    again = drive(run)
    assert again.weights_sha256 == result.weights_sha256
    assert again.mlflow_run == result.mlflow_run
