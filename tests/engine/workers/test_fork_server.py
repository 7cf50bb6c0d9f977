"""Ctrl-C reaches the fork server too, at any moment, and must neither end it nor print a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

INTERRUPTED_IMPORTS = """
import os
import signal
import time
from multiprocessing import forkserver

from shoal.engine.workers import worker_processes

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs ignore interrupts
worker_processes.PRELOADED = ["tests.engine.workers.slow_import"]
context = worker_processes.start_fork_server()
time.sleep(1.0)
os.kill(forkserver._forkserver._forkserver_pid, signal.SIGINT)
process = context.Process(target=print, args=("works",))
process.start()
process.join()
os.kill(os.getpid(), signal.SIGINT)
time.sleep(60)
"""


@pytest.mark.long
def test_an_interrupt_does_not_end_the_fork_server_while_it_imports() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED_IMPORTS], capture_output=True, text=True, timeout=120)
    assert done.stdout == "works\n", done.stderr
    assert "slow_import" not in done.stderr
    assert done.stderr.rstrip().endswith("KeyboardInterrupt"), "this process can still be interrupted"


FROZEN = """
import gc

from shoal.engine.workers.worker_processes import start_fork_server


def tell() -> None:
    print(gc.isenabled(), gc.get_freeze_count() > 100_000)


if __name__ == "__main__":
    process = start_fork_server().Process(target=tell)
    process.start()
    process.join()
"""


@pytest.mark.long
def test_workers_do_not_search_what_they_share_for_unreachable_objects(tmp_path: Path) -> None:
    script = tmp_path / "frozen.py"
    script.write_text(FROZEN)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.stdout == "True True\n", done.stderr
