"""What may happen to a run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import psutil
import requests

from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.status import FINISHED
from tests.chaos.nursery import Driver, Odd
from tests.chaos.trial import HANGS, Event, Trial, kill

DAY = 86_400.0
MOST_KILLS = 3
"""So often a run is killed and taken up, at most."""


def driver_killed(trial: Trial) -> bool:
    """Driver and workers are killed, up to three times in a row."""
    for _ in range(trial.random.randint(1, MOST_KILLS)):
        driver = trial.start()
        trial.at_random(driver)
        kill(driver)
        for worker in trial.chaos.nursery.workers():
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()
        trial.end(driver)
    return trial.finish()


def driver_killed_alone(trial: Trial) -> bool:
    """The driver is killed; its workers end what they are at while the run is taken up."""
    driver = trial.start()
    trial.at_random(driver)
    kill(driver)
    trial.end(driver)
    return trial.finish()


def interrupted(trial: Trial) -> bool:
    """Ctrl-C or SIGTERM."""
    driver = trial.start()
    alive = trial.at_random(driver)
    if alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(driver.pid, trial.random.choice((signal.SIGINT, signal.SIGTERM)))
    code = trial.end(driver)
    if code not in (0, 130):
        trial.notes.append(f"exit code {code}")
    return trial.finish()


def worker_killed(trial: Trial) -> bool:
    """One worker is killed, and the run goes on by itself."""
    return _goes_on(trial, signal.SIGKILL)


def worker_stopped(trial: Trial) -> bool:
    """One worker is stopped: after its timeout the run goes on by itself."""
    return _goes_on(trial, signal.SIGSTOP)


def _goes_on(trial: Trial, hit: signal.Signals) -> bool:
    driver = trial.start()
    trial.at_random(driver)
    workers = trial.chaos.nursery.workers()
    if workers:
        with contextlib.suppress(psutil.NoSuchProcess):
            trial.random.choice(workers).send_signal(hit)
    return _by_itself(trial, driver)


def _by_itself(trial: Trial, driver: Driver) -> bool:
    """Whether a driver brings its run to the end without help."""
    code = trial.end(driver)
    if code != 0 or trial.folder.status().state != FINISHED:
        trial.notes.append(f"did not go on by itself, exit code {code}: {driver.said()[-300:]}")
        return False
    return trial.finish()


def worker_loops(trial: Trial) -> bool:
    """A client's work, or an evaluation, loops for ever once: after its timeout the run goes on by itself."""
    driver = trial.start()
    trial.at_random(driver)
    what = trial.random.choice(("any", "any", "evaluate"))
    (trial.chaos.nursery.orders / f"once-{what}").touch()
    return _by_itself(trial, driver)


def stopped_and_terminated(trial: Trial) -> bool:
    """All workers are stopped, and the driver is asked to end."""
    driver = trial.start()
    alive = trial.at_random(driver)
    for worker in trial.chaos.nursery.workers():
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.suspend()
    if alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(driver.pid, signal.SIGTERM)
    trial.end(driver)
    return trial.finish()


def disk_full(trial: Trial) -> bool:
    """The driver, or a worker, can write no more than a few bytes."""
    if trial.random.random() < 0.5:
        driver = trial.start(Odd(disk=int(10 ** trial.random.uniform(2.5, 5))))
    else:
        driver = trial.start()
        trial.at_random(driver)
        (trial.chaos.nursery.orders / "once-disk").touch()
    trial.end(driver)
    trial.chaos.nursery.clear()
    return trial.finish()


def clock_jumps(trial: Trial) -> bool:
    """The clock jumps by days, there and back; the run is killed, and taken up with a clock that was put back."""
    jump = trial.random.choice((-400, -1, 1, 400)) * DAY
    driver = trial.start(Odd(clock=jump))
    trial.at_random(driver)
    if trial.random.random() < 0.7:
        kill(driver)
        trial.end(driver)
        driver = trial.start(Odd(clock=-jump))
    trial.end(driver)
    return trial.finish()


def two_on_one_run(trial: Trial) -> bool:
    """A second driver takes up a run that a first one works on: it is refused, and the first goes on."""
    first = trial.start()
    alive = trial.at_random(first)
    second = trial.start()
    codes = trial.end(second), trial.end(first)
    if alive and 0 not in codes:
        trial.notes.append(f"neither came to the end: exit codes {codes}")
        return False
    return trial.finish()


def two_runs_in_one_home(trial: Trial) -> bool:
    """Two runs at once in one home; one of them is killed."""
    other = trial.chaos.run(trial.method)
    drivers = trial.start(), trial.start(folder=other)
    trial.at_random(drivers[1], other)
    kill(drivers[1])
    trial.end(drivers[1])
    code = trial.end(drivers[0])
    if code != 0:
        trial.notes.append(f"the other run ended too: exit code {code}")
        return False
    return trial.finish() and trial.finish(other)


def home_moved(trial: Trial) -> bool:
    """Driver and workers are killed and the home is moved, up to three times; the run goes on in the new place."""
    nursery = trial.chaos.nursery
    before = os.environ["SHOAL_HOME"]
    homes = [nursery.home / "moved" / f"{trial.folder.name} {number}" for number in range(MOST_KILLS + 1)]
    homes[0].mkdir(parents=True)

    def live_in(home: Path) -> None:
        trial.env["SHOAL_HOME"] = os.environ["SHOAL_HOME"] = str(home)

    try:
        live_in(homes[0])
        trial.folder = trial.chaos.run(trial.method)
        last = trial.random.randint(1, MOST_KILLS)
        for old, new in pairwise(homes[: last + 1]):
            driver = trial.start()
            trial.at_random(driver)
            kill(driver)
            for worker in nursery.workers():
                with contextlib.suppress(psutil.NoSuchProcess):
                    worker.kill()
            trial.end(driver)
            old.rename(new)
            live_in(new)
            trial.folder = RunFolder(new / "runs" / trial.folder.name)
        same = trial.finish()
        if there := [home.name for home in homes if home != homes[last] and home.exists()]:
            trial.notes.append(f"made again: {there}")
        return same and not there
    finally:
        os.environ["SHOAL_HOME"] = before


# --- servers ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def served(command: list[str], url: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server that answers at `url`, killed at the end."""
    with (folder / "server.log").open("ab") as log:
        env = {**os.environ, "PREFECT_HOME": str(folder / "prefect"), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=env, start_new_session=True)
        try:
            until = time.monotonic() + HANGS
            while time.monotonic() < until:
                with contextlib.suppress(requests.RequestException):
                    if requests.get(url, timeout=2).ok:
                        break
                time.sleep(0.3)
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _server_killed(trial: Trial, command: list[str], url: str, odd: Odd, **tracking: object) -> bool:
    """A server is killed in the middle of the run, which goes on by itself."""
    trial.folder = trial.chaos.run(trial.method, tracking={"model": False, **tracking})
    with served(command, url, trial.chaos.nursery.home) as server:
        driver = trial.start(odd)
        trial.at_random(driver)
        os.killpg(server.pid, signal.SIGKILL)
        return _by_itself(trial, driver)


def prefect_killed(trial: Trial) -> bool:
    """Prefect's server is killed; the run goes on without it."""
    from tests.flows.test_prefect import free_port

    port = free_port()
    command = [str(Path(sys.executable).parent / "prefect"), "server", "start", "--port", str(port)]
    api = f"http://127.0.0.1:{port}/api"
    home = str(trial.chaos.nursery.home / "prefect")
    odd = Odd(env={"PREFECT_API_URL": api, "PREFECT_HOME": home})
    return _server_killed(trial, command, f"{api}/health", odd, prefect="auto")


def mlflow_killed(trial: Trial) -> bool:
    """MLflow's server is killed; the run goes on without it."""
    from tests.flows.test_prefect import free_port

    port = free_port()
    command = [str(Path(sys.executable).parent / "mlflow"), "server", "--port", str(port)]
    command += ["--backend-store-uri", "sqlite:///served.db", "--host", "127.0.0.1"]
    url = f"http://127.0.0.1:{port}"
    return _server_killed(trial, command, f"{url}/health", Odd(), mlflow=True, uri=url)


EVENTS: dict[str, tuple[int, Event]] = {
    "driver and workers killed": (27, driver_killed),
    "driver killed, workers go on": (15, driver_killed_alone),
    "Ctrl-C or SIGTERM": (6, interrupted),
    "worker killed": (14, worker_killed),
    "worker stopped": (7, worker_stopped),
    "worker loops": (7, worker_loops),
    "workers stopped, then SIGTERM": (5, stopped_and_terminated),
    "disk full": (6, disk_full),
    "clock jumps": (4, clock_jumps),
    "two drivers on one run": (2, two_on_one_run),
    "driver and workers killed, home moved": (3, home_moved),
    "two runs in one home": (2, two_runs_in_one_home),
    "Prefect's server killed": (1, prefect_killed),
    "MLflow's server killed": (1, mlflow_killed),
}
"""How many of a hundred tries are of a kind, and what happens then."""
