"""Worker processes that do not run the caller's program.

By default Python's multiprocessing imports the file that the caller was started from into every process it starts, for
functions that are defined there. Workers need nothing of it, and it does harm: a script without
`if __name__ == "__main__"` would begin its run again in each worker, and of standard input there is no file at all.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from multiprocessing import spawn
from typing import Any

WORKER = "shoal worker"
"""What the names of our worker processes begin with."""
MAIN = ("init_main_from_name", "init_main_from_path")
"""What a new process is told of the caller's main module."""

_named: Counter[str] = Counter()
_lock = threading.Lock()
_prepared = spawn.get_preparation_data


def _preparation_data(name: str) -> dict[str, Any]:
    """What multiprocessing tells a new process, without the caller's main module where its name is one of ours."""
    told = _prepared(name)
    with _lock:
        ours = any(name.startswith(prefix) for prefix, count in _named.items() if count)
    return {key: value for key, value in told.items() if key not in MAIN} if ours else told


@contextlib.contextmanager
def without_main(prefix: str = WORKER) -> Iterator[None]:
    """Processes whose names begin with `prefix` start without the caller's main module, as long as this is open.

    Others are started as ever: the caller may have processes of its own.
    """
    with _lock:
        _named[prefix] += 1
        spawn.get_preparation_data = _preparation_data
    try:
        yield
    finally:
        with _lock:
            _named[prefix] -= 1
