"""Ctrl-C reaches the fork server too, at any moment, and must neither end it nor print a traceback."""

from __future__ import annotations

import subprocess
import sys

INTERRUPTED_IMPORTS = """
import os
import signal
import time
from multiprocessing import forkserver

from shoal.engine.workers import worker_processes

worker_processes.PRELOADED = ["tests.engine.workers.slow_import"]
context = worker_processes.start_fork_server()
time.sleep(1.0)
os.kill(forkserver._forkserver._forkserver_pid, signal.SIGINT)
process = context.Process(target=print, args=("works",))
process.start()
process.join()
os.kill(os.getpid(), signal.SIGINT)
"""


def test_an_interrupt_does_not_end_the_fork_server_while_it_imports() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED_IMPORTS], capture_output=True, text=True, timeout=120)
    assert done.stdout == "works\n", done.stderr
    assert "slow_import" not in done.stderr
    assert done.stderr.rstrip().endswith("KeyboardInterrupt"), "this process can still be interrupted"
