"""Clusters of processes on this machine, each of whose parts can be killed or stopped: what stands for hosts."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.sources import ROOT
from tests.team import plain_environment

HOST = "127.0.0.1"
UP = 180.0
"""Seconds in which a part of a cluster must be up, on a machine that has other work."""
MARK = "SHOAL_CHAOS_MARK"
"""Environment variable by which a process and all that it starts are found again."""
HOSTS = 2


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    """Whether anybody listens on a port of this machine."""
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=2.0):
        return True
    return False


def marked(mark: str) -> list[psutil.Process]:
    """The processes that were started with a mark, and what they started."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


class Part:
    """One part of a cluster: a process with all that it starts.

    Args:
        words: the command.
        env: environment variables beside the plain ones.
        folder: it works there, and its output goes to a file there.
    """

    def __init__(self, words: list[str], env: dict[str, str], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log, self.mark = folder / "log", uuid.uuid4().hex
        with self.log.open("wb") as log:  # what one before it said says nothing of whether it is up
            self.process = subprocess.Popen(
                words,
                env={**plain_environment(), **env, MARK: self.mark},
                stdout=log,
                stderr=log,
                cwd=folder,
                start_new_session=True,
            )

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until it is up.

        Raises:
            RuntimeError: it ended, or is not up in time.
        """
        end = time.monotonic() + UP
        while not holds():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"a part of a cluster did not start: {self.said()[-2000:]}")
            time.sleep(0.1)

    def said(self) -> str:
        """What it wrote."""
        return self.log.read_text(errors="replace")

    def send(self, how: signal.Signals, name: str = "") -> None:
        """Send a signal to all its processes at once, or to those of a name."""
        for process in marked(self.mark):
            with contextlib.suppress(psutil.Error):
                if name in process.name():
                    process.send_signal(how)

    def end(self) -> None:
        """Kill it with all that it started, and what was started meanwhile."""
        while marked(self.mark):
            self.send(signal.SIGKILL)
            time.sleep(0.05)
        self.process.wait()


class Cluster:
    """A head and two hosts of one worker each; subclasses say what these are.

    Args:
        folder: for what they write.
        home: the driver's home folder, which the hosts see too.
    """

    runner = ""
    heads = ""
    """The process of the head that is the cluster's, by (a part of) its name."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        self.port = free_port()
        user = folder / "user"
        user.mkdir(parents=True)
        self.env = {"HOME": str(user), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "SHOAL_HOME": str(home)}
        self.head: Part | None = None
        self.hosts: list[Part] = []

    @property
    def address(self) -> str:
        """As the setting `workers.address` has it."""
        return f"{HOST}:{self.port}"

    def hit_head(self, how: signal.Signals) -> None:
        """Send a signal to the process of the head that is the cluster's."""
        if self.head is not None:
            self.head.send(how, self.heads)

    def start(self) -> None:
        """Start it, at the address that it had."""
        raise NotImplementedError

    def end(self) -> None:
        """Kill whatever is left of it."""
        for part in (self.head, *self.hosts):
            if part is not None:
                part.end()
        self.head, self.hosts = None, []


class Dask(Cluster):
    """A scheduler, and workers with their nannies."""

    runner = "dask"

    @property
    def address(self) -> str:
        """With its protocol."""
        return f"tcp://{HOST}:{self.port}"

    def start(self) -> None:
        """As of `Cluster`."""
        words = [sys.executable, "-m", "dask", "scheduler", "--host", HOST, "--port", str(self.port), "--no-dashboard"]
        self.head = head = Part(words, self.env, self.folder / "head")
        head.until(lambda: listens(self.port))
        words = [sys.executable, "-m", "dask", "worker", self.address, "--nthreads", "1", "--host", HOST]
        for number in range(HOSTS):
            folder = self.folder / f"host-{number}"
            own = [*words, "--no-dashboard", "--local-directory", str(folder / "dask")]
            self.hosts.append(Part(own, self.env, folder))
        for host in self.hosts:
            host.until(lambda host=host: "Registered to:" in host.said())  # type: ignore[misc]


KINDS: dict[str, type[Cluster]] = {kind.runner: kind for kind in (Dask,)}
