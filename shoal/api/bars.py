"""Bars of a run's progress: in a notebook below the cell, else on standard error."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from shoal.engine.store.run_events import Observer


@contextlib.contextmanager
def bars() -> Iterator[Observer]:
    """Yield an observer of runs that draws bars."""
    from rich.console import Console

    from shoal.lifecycle.progress import progress

    with progress(Console(stderr=True)) as observe:
        yield observe
