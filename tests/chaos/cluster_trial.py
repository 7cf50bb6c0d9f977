"""One try on a cluster: parts of it die in the middle of a run, which then goes on by itself or is taken up."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from shoal.engine.store.run_events import Event
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.status import FAILED, FINISHED
from shoal.lifecycle.starting import new_run
from tests.chaos.cluster_tally import BY_ITSELF, STOPPED, ClusterOutcome
from tests.chaos.clusters import KINDS, MARK, Cluster, marked
from tests.chaos.trial import TRACEBACK, settings_of
from tests.runs import go_on, numbers, straight

HANGS = 240.0
"""Seconds after which a driver hangs. It is much longer than what a try may take, to tell one from the other."""
LINGERS = 10.0
"""Seconds that what a driver started has to end after it."""
TIMEOUT_MINUTES = 0.5
"""Of these runs: a cluster may have no worker for 30 s instead of 45 s."""
METHODS = ("fedpnp", "fedema")
"""Methods whose clients keep something from round to round, so that files are read on another host than wrote them."""
ROUNDS, CLIENTS = 3, 3
SIZE: dict[str, Any] = {
    "data": {"limit": 120},
    "partition": {"kind": "iid", "clients": CLIENTS},
    "rounds": ROUNDS,
    "participation": {"retries": 1},
}
PROGRESS = ("client_finished", "round_finished", "finished")
EVENTS_OF_A_ROUND = 2 + CLIENTS


@dataclass
class Clusters:
    """Where tries are made.

    Args:
        base: a folder for everything.
        seed: of all that is random.
    """

    base: Path
    seed: int
    whole: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.home.mkdir(exist_ok=True)

    @property
    def home(self) -> Path:
        """SHOAL_HOME of the drivers, which hosts see too."""
        return self.base / "driver"

    def straight(self, method: str, size: dict[str, Any]) -> Any:
        """What a run of a method and size comes to on local slots, where nothing happens."""
        key = f"{method} {size}"
        if key not in self.whole:
            self.whole[key] = numbers(straight(settings_of(method, **size)))
        return self.whole[key]


class ClusterDriver:
    """`shoal run --resume RUN` as a user has it.

    Args:
        run: the run.
        env: environment variables beside the plain ones.
        log: takes both outputs.
    """

    def __init__(self, run: RunFolder, env: dict[str, str], log: Path) -> None:
        self.log, self.mark = log, uuid.uuid4().hex
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "shoal.cli.main", "run", "--resume", str(run.path)],
                env={**env, MARK: self.mark},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd=log.parent,
                start_new_session=True,
            )

    def said(self) -> str:
        """What it wrote on both outputs."""
        return self.log.read_text(errors="replace")

    def left(self) -> int:
        """How many processes of its are there a while after its end; they are killed."""
        end = time.monotonic() + LINGERS
        while (found := marked(self.mark)) and time.monotonic() < end:
            time.sleep(0.1)
        for process in found:
            with contextlib.suppress(Exception):
                process.kill()
        return len(found)


@dataclass
class ClusterTrial:
    """A run on a cluster to which something happens.

    Args:
        clusters: where.
        runner: dask.
        event: what happens.
        number: of the try.
        random: draws of this try.
    """

    clusters: Clusters
    runner: str
    event: str
    number: int
    random: random.Random
    notes: list[str] = field(default_factory=list)
    drivers: list[ClusterDriver] = field(default_factory=list)
    hung: bool = False
    left: int = 0

    def __post_init__(self) -> None:
        self.method = self.random.choice(METHODS)
        self.whole = self.clusters.straight(self.method, SIZE)
        self.place = self.clusters.base / f"try-{self.number}"
        self.place.mkdir()
        self.cluster: Cluster = KINDS[self.runner](self.place / self.runner, self.clusters.home)
        workers = {
            "runner": self.runner,
            "address": self.cluster.address,
            "timeout": TIMEOUT_MINUTES,
        }
        self.run = new_run(settings_of(self.method, **SIZE, workers=workers))

    def start(self) -> ClusterDriver:
        """A driver of the run."""
        env = {**os.environ, **self.cluster.env, "COLUMNS": "10000"}
        driver = ClusterDriver(self.run, env, self.place / f"driver-{len(self.drivers)}.log")
        self.drivers.append(driver)
        return driver

    def at_random(self, driver: ClusterDriver) -> str:
        """Wait for a random moment of the run, and say which it is.

        A moment is a number of events of the run (it has begun, a round has begun, a client is done), and up to half a
        second after it; the last round's last client is not done then.
        """
        wanted = self.random.randint(1, ROUNDS * EVENTS_OF_A_ROUND - 1)
        end = time.monotonic() + HANGS
        while len(self.run.events()) < wanted and driver.process.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(self.random.random() * 0.5)
        events = self.run.events()
        rounds = sum(event.kind == "round_finished" for event in events)
        done = sum(event.kind == "client_finished" for event in events) - rounds * CLIENTS
        return f"round {rounds + 1}, {done} of {CLIENTS} clients done" if rounds < ROUNDS else "after the last round"

    def end(self, driver: ClusterDriver) -> int | None:
        """Wait for a driver's end: its exit code; None where it hangs, and is killed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            driver.process.wait(HANGS)
        code = driver.process.poll()
        if code is None:
            self.hung = True
            self.notes.append(f"driver hangs: {driver.said()[-500:]}")
            os.killpg(driver.process.pid, signal.SIGKILL)
            driver.process.wait()
        left = driver.left()
        if left:
            self.notes.append(f"{left} processes of the driver's were left behind")
        self.left += left
        return code

    def stopped_well(self, code: int | None, gone: str) -> bool:
        """Whether the run stopped resumable, with one sentence that names what is gone and how to go on."""
        status = self.run.status()
        said = " ".join(self.drivers[-1].said().split())
        wanted = (gone, f"shoal run --resume {self.run.name}")
        missing = [text for text in wanted if text not in said or text not in status.message]
        if code != 1 or status.state != FAILED or missing:
            self.notes.append(f"exit code {code}, state {status.state}, not said: {missing}; said: {said[-700:]}")
            return False
        if status.message.count(wanted[1]) > 1:
            self.notes.append(f"it is said more than once: {status.message}")
            return False
        return True

    def resume(self) -> str:
        """Take the run up to its end, on a fresh cluster at the same address or on a local slot; says where."""
        if self.random.random() < 0.5:
            self.cluster.end()
            go_on(self.run)
            return "a local slot"
        self.cluster.end()
        self.cluster.start()
        code = self.end(self.start())
        if code != 0:
            self.notes.append(f"on a fresh cluster: exit code {code}: {self.drivers[-1].said()[-500:]}")
        return "a fresh cluster"

    def execute(self, hit: Hit) -> ClusterOutcome:
        """All of the try: run, event, end, resume."""
        self.cluster.start()
        driver = self.start()
        moment = self.at_random(driver)
        if driver.process.poll() is not None:
            self.notes.append(f"it ended before anything happened: {driver.said()[-500:]}")
        began = time.time()
        gone = hit(self)
        code = self.end(driver)
        seconds, ended, said, resumed = time.time() - began, "", "", ""
        state = self.run.status().state
        if code == 0 and state == FINISHED:
            ended, seconds = BY_ITSELF, longest_silence(self.run.events(), began, began + seconds)
        else:
            said = self.run.status().message
            ended = STOPPED if self.stopped_well(code, gone) else f"exit code {code}, {state}"
        if state != FINISHED:
            resumed = self.resume()
        same = self.run.status().state == FINISHED and numbers(self.run) == self.whole
        if not same:
            self.notes.append(f"it is {self.run.status().state}, or has other numbers than the straight run")
        said_by = [driver.said() for driver in self.drivers]
        shown = [text[text.index(TRACEBACK) :][:3000] for text in said_by if TRACEBACK in text]
        self.notes += shown
        facts: dict[str, Any] = {
            "said": said,
            "resumed": resumed,
            "hung": self.hung,
            "traceback": bool(shown),
            "left": self.left,
        }
        return ClusterOutcome(
            self.event, self.runner, self.method, moment, seconds, ended, same, **facts, note="; ".join(self.notes)
        )

    def close(self) -> None:
        """Kill whatever is left of the cluster."""
        self.cluster.end()


def longest_silence(events: list[Event], began: float, ended: float) -> float:
    """The longest time, from an event to the end of the driver, in which no client and no round was finished."""
    times = [event.time for event in events if event.kind in PROGRESS]
    marks = [began, *(each for each in times if began < each < ended), ended]
    return max(after - before for before, after in pairwise(marks))


@contextlib.contextmanager
def clusters_in(base: Path, seed: int) -> Iterator[Clusters]:
    """A place for tries, in an empty folder; SHOAL_HOME is to name its home."""
    clusters = Clusters(base, seed)
    try:
        yield clusters
    finally:
        shutil.rmtree(clusters.home, ignore_errors=True)


Hit = Callable[[ClusterTrial], str]
"""Lets something happen to a cluster; the words by which what is gone must be named where the run stops."""
