"""Parts of a report: one that fails is left out, with an event of the run, and the run itself is not affected."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

from shoal.core.errors import ShoalError, brief
from shoal.engine.store.run_folder import RunFolder

Made = TypeVar("Made")


def attempted(
    run: RunFolder, what: str, make: Callable[[], Made], but: tuple[type[Exception], ...] | type[Exception] = ()
) -> Made | None:
    """Return the result of `make`; where it fails, return None and record in one event what is missing and why.

    Args:
        run: the run's folder.
        what: the part, in words.
        make: makes it.
        but: errors that are raised nevertheless.
    """
    try:
        return make()
    except but:
        raise
    except Exception as error:  # any error: figures and tables are views, and the run is worth more than they are
        message = f"{what} left out: {type(error).__name__}: {brief(error)}"
        with contextlib.suppress(ShoalError):  # a full disk takes no event
            if all(event.get("message") != message for event in run.events()):
                run.event("not_shown", message=message)
        return None
