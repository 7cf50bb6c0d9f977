"""Parts of a report: one that fails is left out and reported, and the run stays as it was."""

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
    """Return what `make` returns; where it fails return None, and log one event that says what is missing and why.

    Args:
        run: the run's folder.
        what: the part that is made, in words.
        make: makes it.
        but: errors that are raised and not reported.
    """
    try:
        return make()
    except but:
        raise
    except Exception as error:  # of any kind: a view that fails must not stop the run
        message = f"{what} left out: {type(error).__name__}: {brief(error)}"
        with contextlib.suppress(ShoalError):  # on a full disk no event can be written
            if all(event.message != message for event in run.events()):
                run.event("not_shown", message=message)
        return None
