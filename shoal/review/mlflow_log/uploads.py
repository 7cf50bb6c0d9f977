"""Longer timeouts for large files: a server with an object store answers only when it has stored the whole file.

MLflow has one timeout for all requests, and it is short, so that a server out of reach is noticed in seconds
(`shoal.review.mlflow_log.tracking`). A model of gigabytes takes longer on an ordinary line, and no later sync would
succeed either.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

MIN_BYTES_PER_SECOND = 1e6
"""The slowest transfer that is allowed for."""
VARIABLE = "MLFLOW_HTTP_REQUEST_TIMEOUT"
"""Seconds that MLflow waits for an answer; MLflow reads it at each request."""
DEFAULT_SECONDS = 120.0
"""MLflow's timeout where the variable is not set."""
_one_at_a_time = threading.RLock()


@contextlib.contextmanager
def longer_timeout(*paths: Path) -> Iterator[None]:
    """Extend MLflow's timeout within the block by the time that the largest of some files needs.

    Args:
        paths: files, or folders of them.
    """
    files = [file for path in paths for file in (path, *path.rglob("*")) if file.is_file()]
    largest = max((file.stat().st_size for file in files), default=0)
    with _one_at_a_time:
        before = os.environ.get(VARIABLE)
        seconds = float(before or DEFAULT_SECONDS) + largest / MIN_BYTES_PER_SECOND
        os.environ[VARIABLE] = str(int(seconds))
        try:
            yield
        finally:
            if before is None:
                del os.environ[VARIABLE]
            else:
                os.environ[VARIABLE] = before
