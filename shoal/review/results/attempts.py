"""Attempts to make parts of a view: a part that fails is left out and reported, and the run stays as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

from shoal.core.errors import ShoalError, short_text
from shoal.engine.store.run_folder import RunFolder

Made = TypeVar("Made")


def attempt(
    run: RunFolder, what: str, make: Callable[[], Made], raised: tuple[type[Exception], ...] = ()
) -> Made | None:
    """Return what `make` returns; where it fails return None, and log one event that says what is missing and why.

    Args:
        run: the run's folder.
        what: the part that is made, in words.
        make: makes it.
        raised: kinds of errors that are raised and not reported.
    """
    try:
        return make()
    except raised:
        raise
    except Exception as error:  # of any kind: a view that fails must not stop the run
        message = f"{what} left out: {type(error).__name__}: {short_text(error)}"
        with contextlib.suppress(ShoalError):  # on a full disk no event can be written
            if all(event.message != message for event in run.events()):
                run.event("not_shown", message=message)
        return None
