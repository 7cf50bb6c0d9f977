"""Clusters of processes on this machine, each of whose parts can be killed or stopped: what stands for hosts.

A worker of such a host sees neither the driver's home folder, where an empty one is mounted for it, nor the cache of
another host. Files reach it through an object store, which is a process too.
"""

from __future__ import annotations

import contextlib
import os
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
from tests.team import answers, plain_environment

HOST = "127.0.0.1"
UP = 180.0
"""Seconds in which a part of a cluster must be up, on a machine that has other work."""
MARK = "SHOAL_CHAOS_MARK"
"""Environment variable by which a process and all that it starts are found again."""
BUCKET = "shoal"
HIDDEN = 'mount -t tmpfs none "$0" && exec "$@"'
"""A shell's program: an empty folder in place of the one named first, and then the command."""
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
        hidden: a folder that it finds empty.
    """

    def __init__(self, words: list[str], env: dict[str, str], folder: Path, hidden: Path | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log, self.mark = folder / "log", uuid.uuid4().hex
        if hidden is not None:
            apart = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
            words = [*apart, "sh", "-c", HIDDEN, str(hidden), *words]
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


class ObjectStore:
    """An S3 server whose objects outlive it.

    Args:
        folder: of its journal and log.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.url = f"http://{HOST}:{self.port}"
        self.env = {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "word",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        self.part: Part | None = None

    def start(self) -> None:
        """Start it, or start it again with all that was in it."""
        self.kill()
        words = [sys.executable, "-m", "tests.chaos.object_store", HOST, str(self.port), str(self.folder / "journal")]
        self.part = part = Part(words, {"PYTHONPATH": str(ROOT)}, self.folder)
        part.until(lambda: answers(f"{self.url}/moto-api/"))

    def make_bucket(self) -> None:
        """Make the bucket of the tries."""
        import boto3

        keys = {"aws_access_key_id": "key", "aws_secret_access_key": "word", "region_name": "us-east-1"}
        boto3.client("s3", endpoint_url=self.url, **keys).create_bucket(Bucket=BUCKET)

    def send(self, how: signal.Signals) -> None:
        """Send it a signal."""
        if self.part is not None:
            self.part.send(how)

    def kill(self) -> None:
        """Kill it."""
        if self.part is not None:
            self.part.end()


class Cluster:
    """A head and two hosts of one worker each; subclasses say what these are.

    Args:
        folder: for what they write; the hosts' caches lie there.
        hidden: the driver's home folder, which the hosts find empty.
        env: environment variables, such as those of the object store.
    """

    runner = ""
    heads = ""
    """The process of the head that is the cluster's, by (a part of) its name."""

    def __init__(self, folder: Path, hidden: Path, env: dict[str, str]) -> None:
        self.folder, self.hidden, self.port = folder, hidden, free_port()
        user = folder / "user"
        user.mkdir(parents=True)
        self.env = {**env, "HOME": str(user), "PYTHONPATH": str(ROOT)}
        self.env |= {"OMP_NUM_THREADS": "1", "SHOAL_HOME": str(hidden)}
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

    def host_env(self, number: int) -> dict[str, str]:
        """The environment of a host, which keeps copies in a folder of its own."""
        return {**self.env, "SHOAL_CACHE": str(self.folder / f"cache-{number}")}

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
            self.hosts.append(Part(own, self.host_env(number), folder, self.hidden))
        for host in self.hosts:
            host.until(lambda host=host: "Registered to:" in host.said())  # type: ignore[misc]


KINDS: dict[str, type[Cluster]] = {kind.runner: kind for kind in (Dask,)}
