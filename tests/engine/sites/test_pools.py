"""Dask as the runner: the same bits as one process, also where a worker is killed in the middle."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from shoal.engine.cluster import dask_pool
from shoal.engine.cluster.cluster_work import work
from shoal.engine.cluster.dask_pool import DaskPool
from shoal.engine.messages.wire import Answer, Evaluate, Failure, Request, Train, TrainAnswer
from shoal.engine.settings.run_settings import SettingsError
from shoal.engine.sites.pools import open_pool
from shoal.engine.store.run_events import Event
from shoal.engine.workers.worker import Worker
from shoal.engine.workers.worker_processes import WorkerLost
from shoal.lifecycle.starting import new_run
from tests.conftest import one_quick
from tests.runs import go_on, numbers, straight

Make = Callable[..., Any]


@pytest.fixture(autouse=True)
def own_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are new processes: they find the rooms where this process does."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(p for p in sys.path if p))


@contextlib.contextmanager
def cluster_of(workers: int) -> Iterator[dict[str, Any]]:
    """The settings of workers that are processes of a Dask cluster."""
    import dask
    from distributed import LocalCluster

    about: dict[str, Any] = {"threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
    # Without further tries of Dask's own.
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        LocalCluster(n_workers=workers, **about) as cluster,
    ):
        yield {"runner": "dask", "address": cluster.scheduler_address, "slots": workers}


@pytest.fixture
def two_workers() -> Iterator[dict[str, Any]]:
    """The settings of workers that are two processes of a Dask cluster."""
    with cluster_of(2) as about:
        yield about


def looker(pool: Any) -> Callable[[], list[int]]:
    """What gives the process ids of the workers that are training right now."""
    pids = pool._client.run(os.getpid)  # once: a stopped worker does not answer
    return lambda: [pids[at] for at, tasks in pool._client.processing().items() if tasks and at in pids]


def kill_in_the_middle(pool: Any) -> list[int]:
    """Kill workers that have work and no answer yet: those that still have it when they have been stopped a while.

    One that is killed right after its answer costs nothing but time: Dask works it out again by itself.
    """
    at_work = looker(pool)
    stopped = at_work()
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(0.5)  # in which an answer that was on its way arrives
    busy = at_work()
    for pid in stopped:
        os.kill(pid, signal.SIGKILL if pid in busy else signal.SIGCONT)
    return [pid for pid in stopped if pid in busy]


@pytest.mark.parametrize("workers", one_quick([1, 2]))
def test_a_cluster_gives_the_same_bits(home: Any, small: Make, workers: int) -> None:
    with cluster_of(workers) as about:
        settings = small(rounds=2, workers=about)
        with open_pool(settings.workers, "cpu") as pool:
            assert isinstance(pool, DaskPool)
            assert pool.count == workers
            there = straight(settings, pool.call, slots=workers)
    assert numbers(there) == numbers(straight(small(rounds=2)))


@pytest.mark.slow
def test_a_killed_worker_of_a_cluster_loses_nothing(home: Any, small: Make, two_workers: dict[str, Any]) -> None:
    killed: list[int] = []
    settings = small(rounds=2, workers=two_workers)
    with open_pool(settings.workers, "cpu") as pool:

        def watch(event: Event) -> None:
            if event.kind == "client_finished" and not killed:
                killed.extend(kill_in_the_middle(pool))

        after = straight(settings, pool.call, [watch], slots=2)
    assert killed, "nobody was at work when the first client was done"
    assert numbers(after) == numbers(straight(small(rounds=2)))
    assert any(e.kind == "slot_lost" for e in after.events())


def test_a_request_that_does_not_go_on_is_given_up() -> None:
    client = mock.Mock(_scheduler_identity={"total_threads": 1}, status="running")
    pool = DaskPool(client, 1, "cpu", timeout=1e-6)

    def wait(seconds: float) -> None:
        if pool._clocks[1] is None:
            pool._goes_on(1)  # the worker has begun
        time.sleep(0.001)
        raise TimeoutError

    client.submit.return_value.result.side_effect = wait
    with pytest.raises(WorkerLost, match=r"\(workers\.timeout\) and was given up"):
        pool.call(Train(Path("/runs/this"), 1, (), ()))
    client.submit.return_value.cancel.assert_called_once_with(force=True)


@pytest.mark.slow
def test_a_running_dask_cluster_by_its_address(home: Any, small: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from distributed import LocalCluster

    with LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=None, silence_logs=50) as cluster:
        settings = small(rounds=1, workers={"runner": "dask", "address": cluster.scheduler_address, "slots": "auto"})
        with open_pool(settings.workers, "cpu") as pool:
            assert isinstance(pool, DaskPool)
            assert pool.count == 2
            begun: set[int] = set()
            monkeypatch.setattr(pool, "_goes_on", begun.add)
            run = straight(settings, pool.call, slots=2)
            for _ in range(500):
                if len(begun) == pool._number:
                    break
                time.sleep(0.02)
            # Every work says when it begins: from then on the timeout counts, and not while it waits in the queue.
            assert sorted(begun) == list(range(1, pool._number + 1))
    assert numbers(run) == numbers(straight(small(rounds=1)))


CLUSTER = """
import sys
from distributed import LocalCluster
cluster = LocalCluster(n_workers=1, processes=False, protocol="tcp://", host="127.0.0.1", dashboard_address=None)
print(cluster.scheduler_address, flush=True)
for workers in sys.stdin:
    cluster.scale(int(workers))
"""


@pytest.fixture
def cluster() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A Dask cluster of somebody else, in one process of its own, and its address."""
    process = subprocess.Popen(
        [sys.executable, "-c", CLUSTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.long
def test_a_scheduler_that_is_gone_ends_the_run_resumable(
    home: Any, small: Make, cluster: tuple[subprocess.Popen[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_pool, "RECONNECT_SECONDS", 2.0)
    printed = logging.StreamHandler(io.StringIO())
    monkeypatch.setattr(logging.getLogger("distributed"), "handlers", [printed])
    process, address = cluster
    settings = small(rounds=3, workers={"runner": "dask", "address": address, "slots": 1})
    run = new_run(settings)

    def kill(event: Event) -> None:
        if event.kind == "client_finished":
            process.kill()

    with open_pool(settings.workers, "cpu") as pool, pytest.raises(dask_pool.ClusterLost) as lost:
        go_on(run, pool.call, [kill])
    assert f"the Dask scheduler at {address} is gone" in str(lost.value)
    assert f"shoal run --resume {run.name}" in str(lost.value)
    assert not printed.stream.getvalue(), "Dask's own words about it are a traceback"
    assert run.status().state == "failed"
    go_on(run)
    assert numbers(run) == numbers(straight(small(rounds=3)))


@pytest.mark.slow
@pytest.mark.parametrize("what", ["stopped", "without workers"])
def test_a_cluster_that_does_nothing_any_more_ends_the_run_resumable(
    home: Any, small: Make, cluster: tuple[subprocess.Popen[str], str], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    if what == "stopped":  # a busy machine's scheduler may be silent for as long while it lets its workers go
        monkeypatch.setattr(dask_pool, "SILENT_SECONDS", 5.0)
    process, address = cluster
    monkeypatch.setattr(dask_pool, "NO_WORKER_SECONDS", 3.0)
    settings = small(rounds=3, workers={"runner": "dask", "address": address, "slots": 1})
    run = new_run(settings)

    def stop(event: Event) -> None:
        if event.kind != "round_finished":
            return
        if what == "stopped":
            process.send_signal(signal.SIGSTOP)
        else:
            assert process.stdin is not None
            process.stdin.write("0\n")
            process.stdin.flush()

    with open_pool(settings.workers, "cpu") as pool, pytest.raises(dask_pool.ClusterLost) as lost:
        go_on(run, pool.call, [stop])
    said = "has not answered for" if what == "stopped" else "has had no worker for"
    assert f"the Dask scheduler at {address} {said}" in str(lost.value)
    assert f"shoal run --resume {run.name}" in str(lost.value)
    assert run.status().state == "failed"
    go_on(run)
    assert numbers(run) == numbers(straight(small(rounds=3)))


def test_a_pause_of_this_process_is_no_silence_of_the_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    client = mock.Mock(_scheduler_identity={"total_threads": 2})
    watch = dask_pool.SchedulerWatch(client)
    assert watch.measure() == (0.0, 0.0)
    now = 4000.0  # of which two seconds count
    assert watch.measure() == (2.0, 0.0)
    client._scheduler_identity = {"total_threads": 0}
    assert watch.measure() == (0.0, 0.0)
    now += 1.0
    client._scheduler_identity = {"total_threads": 0}
    assert watch.measure() == (0.0, 1.0)
    now += 1.0
    assert watch.measure() == (1.0, 2.0)
    client._scheduler_identity = {"total_threads": 1}
    assert watch.measure() == (0.0, 0.0)


@pytest.mark.parametrize("status", ["cancelled", "error"])
def test_a_request_dropped_while_it_is_waited_for_is_a_lost_one(monkeypatch: pytest.MonkeyPatch, status: str) -> None:
    monkeypatch.setattr(dask_pool, "RECONNECT_SECONDS", 0.0)
    unbound = UnboundLocalError("cannot access local variable 'result' where it is not associated with a value")
    future = mock.Mock(status=status, result=mock.Mock(side_effect=unbound))
    client = mock.Mock(_scheduler_identity={"total_threads": 1}, status="running", submit=lambda *a, **k: future)
    pool, request = DaskPool(client, 1, "cpu"), Train(Path("/runs/this"), 1, (), ())
    if status == "error":  # a client's own fault, which is told as it is
        with pytest.raises(UnboundLocalError):
            pool.call(request)
        return
    with pytest.raises(WorkerLost, match="dropped the work"):
        pool.call(request)
    client.status = "connecting"
    with pytest.raises(dask_pool.ClusterLost, match="is gone"):
        pool.call(request)


@pytest.mark.slow
def test_a_signal_ends_a_run_whose_scheduler_does_not_answer(
    home: Any, small: Make, cluster: tuple[subprocess.Popen[str], str]
) -> None:
    process, address = cluster
    settings = small(rounds=6, workers={"runner": "dask", "address": address, "slots": 1})
    run = new_run(settings)
    program = (
        "import sys; from shoal.cli.main import entry; sys.argv = ['shoal', 'run', '--resume', sys.argv[1]]; entry()"
    )
    driver = subprocess.Popen([sys.executable, "-c", program, str(run.path)], stderr=subprocess.PIPE, text=True)
    try:
        while not any(e.kind == "client_finished" for e in run.events()):
            assert driver.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGSTOP)
        driver.send_signal(signal.SIGTERM)
        _, said = driver.communicate(timeout=120)  # a hang fails here
    finally:
        driver.kill()
        process.send_signal(signal.SIGCONT)
    assert driver.returncode == 130
    assert "Traceback" not in said
    assert run.status().state == "interrupted"
    go_on(run)
    assert numbers(run) == numbers(straight(settings))


def test_workers_that_join_are_used_and_requests_wait_for_them(home: Any, small: Make) -> None:
    from distributed import LocalCluster

    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster:
        settings = small(workers={"runner": "dask", "address": cluster.scheduler_address, "slots": "auto"})
        with open_pool(settings.workers, "cpu") as pool:
            assert pool.count == 1
            assert pool.max_requests > 64
            cluster.scale(2)
            cluster.wait_for_workers(2)
            for _ in range(500):
                if pool.count == 2:
                    break
                time.sleep(0.02)
            assert pool.count == 2


def test_a_cluster_that_does_not_answer_is_named(small: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_pool, "CONNECT_SECONDS", 2.0)
    settings = small(workers={"runner": "dask", "address": "tcp://127.0.0.1:9"})
    with pytest.raises(SettingsError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9"):  # noqa: SIM117
        with open_pool(settings.workers, "cpu"):
            pass


def test_a_missing_package_is_named(small: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(SettingsError, match=r"pip install distributed"):  # noqa: SIM117
        with open_pool(small(workers={"runner": "dask", "address": "tcp://127.0.0.1:9"}).workers, "cpu"):
            pass


@pytest.mark.parametrize("runner", ["ray", "prefect"])
def test_other_runners_are_refused_with_those_that_there_are(small: Make, runner: str) -> None:
    with pytest.raises(SettingsError, match=r"workers\.runner: .*expected one of local, dask"):
        small(workers={"runner": runner})


def test_a_worker_without_the_shared_folder_says_so() -> None:
    answer = work(Train(Path("/nowhere/at/all"), 1, (), ()), "cpu")
    assert isinstance(answer, Failure)
    assert "does not see /nowhere/at/all" in answer.error
    assert "SHOAL_HOME" in answer.error


def test_workers_can_be_started_before_torch_is_imported() -> None:
    """They import while the driver does: with torch first, a run would begin seconds later."""
    code = "import shoal.engine.workers.worker_processes, sys; print({'torch', 'pandas', 'prefect', 'mlflow'} & set(sys.modules))"  # noqa: E501
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_run_that_goes_on_otherwise_is_not_given_bytes_of_before(home: Path, small: Make) -> None:
    """Interrupted after a round without client 0 was evaluated; resumed, client 0 takes part after all."""
    settings = small(participation={"retries": 0, "minimum": 0.5})
    trains, judges = Worker(), Worker()

    def call(request: Request) -> Answer:
        return (trains if isinstance(request, Train) else judges).handle(request)

    def without_client_0(request: Request) -> Answer:
        answer = call(request)
        if isinstance(request, Evaluate) and request.round == 2:
            raise KeyboardInterrupt
        if (
            isinstance(answer, TrainAnswer)
            and isinstance(request, Train)
            and request.round == 2
            and 0 in answer.clients
        ):
            (request.run / "work" / "0002" / "done-0.json").unlink()
            return TrainAnswer({**answer.clients, 0: Failure("not now")})
        return answer

    run = new_run(settings)
    with pytest.raises(KeyboardInterrupt):
        go_on(run, without_client_0)
    assert "client_left_out" in {e.kind for e in run.events()}
    go_on(run, call)
    assert numbers(run) == numbers(straight(settings))
