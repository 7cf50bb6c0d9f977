"""How a command ends: at once, with what was promised for the end done."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading

PATIENCE = 5.0
"""Seconds that a finished command still waits for Prefect, where its server was lost."""


def leave(code: int) -> None:
    """End the process without taking it apart, which takes seconds after torch and Prefect were imported.

    As at an ordinary end, threads that are still at work are waited for, and what was registered for the end is done;
    but where Prefect was lost, its threads would knock at the lost server's door for minutes.
    """
    environment = sys.modules.get("shoal.tasks.prefect.environment")  # where it was never imported, nothing was lost
    if environment is not None and environment.server_lost.is_set():
        last = threading.Timer(PATIENCE, _out, (code,))
        last.daemon = True
        last.start()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    _out(code)


def _out(code: int) -> None:
    slots = sys.modules.get("shoal.engine.workers.worker_processes")
    if slots is not None:
        slots.kill_fork_server()
    with contextlib.suppress(OSError, ValueError):  # a pipe that is closed
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
