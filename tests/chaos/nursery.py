"""A process that has imported everything, and forks the drivers of runs: so one starts in a moment, not in seconds.

A driver is `shoal run --resume RUN` as a user has it, but for its start. Its workers are real worker processes, forked
from a process that all drivers of a nursery share; they obey the orders of `tests.orders`.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.orders import ME, VARIABLE

ROOT = Path(__file__).parents[2]
COMMAND = "shoal.cli.main:entry"
"""The command line."""


@dataclass(frozen=True)
class Odd:
    """What is odd about a driver.

    Args:
        disk: bytes that a file it writes can have at most, as if the disk were full; 0: as many as it likes.
        clock: seconds by which its clock jumps, there and back, every tenth of a second; 0: never.
        env: environment variables.
    """

    disk: int = 0
    clock: float = 0.0
    env: dict[str, str] = field(default_factory=dict)


class Driver:
    """A driver that was started."""

    def __init__(self, nursery: Nursery, pid: int, log: Path) -> None:
        self._nursery, self.pid, self.log = nursery, pid, log

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        try:
            return psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    def code(self) -> int:
        """The exit code of a driver that has ended; below 0 by a signal."""
        return int(self._nursery.ask(do="reap", pid=self.pid))

    def said(self) -> str:
        """What it wrote on both outputs."""
        return self.log.read_text(errors="replace")


class Nursery:
    """The nursery, as who asks it for drivers sees it.

    Args:
        home: SHOAL_HOME of the drivers, which exists.
        modules: what drivers import beside the command line.
        env: environment variables of all drivers.
    """

    def __init__(self, home: Path, modules: Sequence[str] = (), env: dict[str, str] | None = None) -> None:
        self.home, self.orders, self._started = home, home / "orders", 0
        self.orders.mkdir()
        env = {**os.environ, "SHOAL_HOME": str(home), VARIABLE: str(self.orders), "OMP_NUM_THREADS": "1", **(env or {})}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.nursery", *modules],
            cwd=ROOT,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.forkserver = int(self.ask(do="wait"))

    def ask(self, **order: Any) -> Any:
        """Have it do something."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def start(self, run: Path, odd: Odd | None = None) -> Driver:
        """A driver of a run."""
        return self.launch(COMMAND, ["run", "--resume", str(run)], odd)

    def launch(self, entry: str, words: Sequence[str] = (), odd: Odd | None = None) -> Driver:
        """Start a driver.

        Args:
            entry: the function that it carries out, as MODULE:FUNCTION.
            words: the words of its command line.
            odd: what is odd about it.
        """
        self._started += 1
        log = self.home / f"driver-{self._started}.log"
        odd = odd or Odd()
        about = {"entry": entry, "words": list(words), "log": str(log)}
        pid = self.ask(do="start", **about, disk=odd.disk, clock=odd.clock, env=odd.env)
        return Driver(self, int(pid), log)

    def workers(self) -> list[psutil.Process]:
        """The worker processes of all drivers."""
        try:
            return [p for p in psutil.Process(self.forkserver).children() if p.status() != psutil.STATUS_ZOMBIE]
        except psutil.NoSuchProcess:
            return []

    def clear(self) -> None:
        """End the workers that are left, and forget orders that were not carried out."""
        for worker in self.workers():
            worker.kill()
        for order in self.orders.iterdir():
            order.unlink()

    def close(self) -> None:
        """End it and what it has started."""
        self.clear()
        self._process.kill()
        self._process.wait()


# --- in the nursery ---------------------------------------------------------------------------------------------------


def main() -> None:
    """Read orders and carry them out until the end of standard input."""
    from multiprocessing import forkserver

    from shoal.engine.settings import hardware
    from shoal.engine.workers import worker_processes

    hardware.CPU_TIMEOUT_MINUTES = 8 / 60
    for name in (
        "shoal.cli.main",
        "shoal.lifecycle.driving",
        "shoal.review.pages.cluster_sheets",
        "shoal.review.pages.figures",
        "shoal.review.pages.report",
        *sys.argv[1:],
    ):
        importlib.import_module(name)

    worker_processes.PRELOADED = [*worker_processes.PRELOADED, ME]
    worker_processes.start_fork_server()
    # Drivers use this one, and leave it alone.
    known: Any = forkserver._forkserver  # type: ignore[attr-defined]
    known.ensure_running = forkserver.ensure_running = lambda: None
    worker_processes.kill_fork_server = lambda: None
    for line in sys.stdin:
        order = json.loads(line)
        answer: Any = None
        if order["do"] == "start":
            answer = os.fork()
            if answer == 0:
                drive(order)
        elif order["do"] == "reap":
            _, status = os.waitpid(order["pid"], 0)
            answer = os.waitstatus_to_exitcode(status)
        else:
            answer = known._forkserver_pid
        print(json.dumps(answer), flush=True)


def drive(order: dict[str, Any]) -> None:
    """Become a driver; never returns."""
    module, _, function = order["entry"].partition(":")
    entry = getattr(importlib.import_module(module), function)
    os.setsid()
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ.update(order["env"])
    if order["disk"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["disk"], order["disk"]))
    if order["clock"]:
        real, began = time.time, time.monotonic()
        time.time = lambda: real() + order["clock"] * (int((time.monotonic() - began) * 10) % 2)
    sys.argv = ["shoal", *order["words"]]
    try:
        entry()
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)  # an entry point leaves by itself


if __name__ == "__main__":
    main()
