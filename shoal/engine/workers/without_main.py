"""Start worker processes without the caller's main module.

By default Python's multiprocessing imports the caller's main file into every process that it starts, for functions that
are defined there. Workers need none of them, and the import does harm: a script without `if __name__ == "__main__"`
would start its run again in each worker, and a program from standard input has no file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from multiprocessing import spawn
from typing import Any

WORKER_NAME = "shoal worker"
"""Prefix of the names of our worker processes."""
MAIN_KEYS = ("init_main_from_name", "init_main_from_path")
"""Keys of multiprocessing's preparation data that name the caller's main module."""

_named: list[str] = []
"""Prefixes of the names of processes that start now without the caller's main module."""
_prepared = spawn.get_preparation_data


def _preparation_data(name: str) -> dict[str, Any]:
    """Return multiprocessing's data for a new process, without the caller's main module if the process is ours."""
    data = _prepared(name)
    if name.startswith(tuple(_named)):
        data = {key: value for key, value in data.items() if key not in MAIN_KEYS}
    return data


@contextlib.contextmanager
def without_main(prefix: str = WORKER_NAME) -> Iterator[None]:
    """Within this context, start processes whose names begin with `prefix` without the caller's main module.

    Other processes start as usual: the caller may have processes of its own.
    """
    _named.append(prefix)
    spawn.get_preparation_data = _preparation_data
    try:
        yield
    finally:
        _named.remove(prefix)
