"""Processes of `shoal serve` end with it, and with their own first process."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil

from shoal.serving.processes import ended_with_the_block, start

PART = (
    "import subprocess, sys, time;"
    "worker = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)']);"
    "print(worker.pid, flush=True);"
    "time.sleep(300)"
)
"""A server with a worker process of its own, as MLflow's is."""


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


def test_the_workers_of_a_part_that_was_killed_end_too(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with ended_with_the_block() as parts:
        part = start(log, sys.executable, "-c", PART)
        parts["part"] = part
        worker = worker_of(log)
        part.kill()
        part.wait()
        assert is_alive(worker)
    assert is_gone(worker)
    assert log.stat().st_mode & 0o777 == 0o600
