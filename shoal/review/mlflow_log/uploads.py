"""Time for files on their way to MLflow: a server that keeps them in an object store answers once they are there.

MLflow waits equally long for every answer, and a server out of reach must be noticed in seconds
(`shoal.review.mlflow_log.tracking`). A model of gigabytes takes longer than that on an ordinary line, and no later sync
would get it there either.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

SLOWEST = 1e6
"""Bytes a second that a file travels at, at least."""
VARIABLE = "MLFLOW_HTTP_REQUEST_TIMEOUT"
"""Seconds that MLflow waits for an answer; it looks at each request."""
DEFAULT = 120.0
"""Where the variable is not set."""
_one_at_a_time = threading.RLock()


@contextlib.contextmanager
def time_to_send(*paths: Path) -> Iterator[None]:
    """Have MLflow wait longer for each answer, as the largest of some files needs; what is set to more stays.

    Args:
        paths: files, or folders of them.
    """
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()]
    largest = max((file.stat().st_size for file in files), default=0)
    with _one_at_a_time:
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = str(int((float(before) if before else DEFAULT) + largest / SLOWEST))
        try:
            yield
        finally:
            if before is None:
                del os.environ[VARIABLE]
            else:
                os.environ[VARIABLE] = before
