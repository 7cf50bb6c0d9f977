"""Progress of a run on standard error: bars, or in a notebook lines below the cell."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from shoal.engine.store.run_events import Observer


@contextlib.contextmanager
def bars() -> Iterator[Observer]:
    """Yield an observer of runs that shows how they fare."""
    from rich.console import Console

    from shoal.lifecycle.progress import progress

    with progress(Console(stderr=True, force_jupyter=False)) as observe:
        yield observe
