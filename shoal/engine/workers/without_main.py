"""Start worker processes without the caller's main module.

By default Python's multiprocessing imports the caller's main file into every process that it starts, for functions that
are defined there. Workers need none of them, and the import does harm: a script without `if __name__ == "__main__"`
would start its run again in each worker, and a program from standard input has no file.
"""

from __future__ import annotations

from multiprocessing import spawn
from typing import Any

WORKER_NAME = "shoal worker"
"""Prefix of the names of our worker processes."""
MAIN_KEYS = ("init_main_from_name", "init_main_from_path")
"""Keys of multiprocessing's preparation data that name the caller's main module."""

_prepared = spawn.get_preparation_data


def _preparation_data(name: str) -> dict[str, Any]:
    """Return multiprocessing's data for a new process, without the caller's main module if the process is ours."""
    data = _prepared(name)
    if name.startswith(WORKER_NAME):
        data = {key: value for key, value in data.items() if key not in MAIN_KEYS}
    return data


def start_without_main(process: Any) -> None:
    """Start a process whose name begins with `WORKER_NAME`; the caller's own processes start as usual."""
    spawn.get_preparation_data = _preparation_data
    process.start()
