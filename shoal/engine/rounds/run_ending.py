"""How a run that ends before its last round is recorded, so that it can be resumed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from shoal.core.errors import ShoalError
from shoal.engine.store.run_folder import RunFolder, RunStopped
from shoal.engine.store.status import FAILED, INTERRUPTED, STOPPED


@contextlib.contextmanager
def early_ending_recorded(run: RunFolder, rounds_done: Callable[[], int]) -> Iterator[None]:
    """Record in events and status why what is done meanwhile ended, if by an exception, which goes on.

    Args:
        run: the run.
        rounds_done: how many of its rounds are done.
    """
    try:
        yield
    except RunStopped as stop:
        record_ending(run, "stopped", STOPPED, stop.round, str(stop), message=str(stop))
        raise
    except Exception as error:
        record_ending(run, "failed", FAILED, rounds_done(), str(error), message=str(error))
        raise
    except BaseException:  # Ctrl-C and what else asks a process to end, such as Prefect's own signal
        why = f"interrupted; go on with --resume {run.name}"
        record_ending(run, "interrupted", INTERRUPTED, rounds_done(), why)
        raise


def record_ending(run: RunFolder, event: str, state: str, round: int, why: str, **facts: Any) -> None:
    """Log an event and set the status; a full disk may refuse both, and the error that ended the run matters more."""
    with contextlib.suppress(ShoalError):
        run.event(event, round=round, **facts)
        run.set_status(state, round, why)
