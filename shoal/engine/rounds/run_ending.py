"""Record why a run ends before its last round; it can be resumed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from shoal.core.errors import ShoalError
from shoal.engine.store.checkpoint import rounds_done
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.status import FAILED, INTERRUPTED


@contextlib.contextmanager
def record_early_ending(run: RunFolder) -> Iterator[None]:
    """Record an exception within this context in the run's events and status, and let it pass."""
    try:
        yield
    except Exception as error:
        _record_ending(run, "failed", FAILED, str(error), message=str(error))
        raise
    except BaseException:  # Ctrl-C, and other requests to end the process, such as Prefect's own signal
        message = f"interrupted; resume with --resume {run.name}"
        _record_ending(run, "interrupted", INTERRUPTED, message)
        raise


def _record_ending(run: RunFolder, event: str, state: str, why: str, **facts: Any) -> None:
    """Log an event and set the status, without an error: the one that ended the run matters more."""
    with contextlib.suppress(ShoalError, OSError):
        round = max(rounds_done(run), default=0)
        run.event(event, round=round, **facts)
        run.set_status(state, round, why)
