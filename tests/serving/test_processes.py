"""Processes of `shoal serve` end with it, however it ends, and with their own first process."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from shoal.serving.processes import Processes, start
from tests.sources import ROOT

PART = (
    "import subprocess, sys, time;"
    "worker = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)']);"
    "print(worker.pid, flush=True);"
    "time.sleep(300)"
)
"""A server with a worker process of its own, as MLflow's is."""
SERVE = """
import sys, time
from pathlib import Path
from shoal.serving.processes import Processes, start
with Processes() as parts:
    parts.add("part", start(Path(sys.argv[1]), sys.executable, "-c", sys.argv[2]))
    print("started", flush=True)
    time.sleep(300)
"""


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def worker_of(log: Path) -> int:
    while not (text := log.read_text()).endswith("\n"):
        time.sleep(0.05)
    return int(text)


def is_gone(pid: int) -> bool:
    deadline = time.monotonic() + 60
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not is_alive(pid)


@pytest.mark.long
def test_parts_end_when_shoal_serve_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    words = [sys.executable, "-c", SERVE, str(log), PART]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as serve:
        assert serve.stdout is not None
        assert serve.stdout.readline() == "started\n"
        worker = worker_of(log)
        part = psutil.Process(worker).ppid()
        assert is_alive(worker)
        serve.send_signal(signal.SIGKILL)
    assert is_gone(part)
    assert is_gone(worker)


def test_the_workers_of_a_part_that_was_killed_end_too(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Processes() as parts:
        part = start(log, sys.executable, "-c", PART)
        parts.add("part", part)
        worker = worker_of(log)
        part.kill()
        part.wait()
        assert is_alive(worker)
    assert is_gone(worker)
    assert log.stat().st_mode & 0o777 == 0o600
