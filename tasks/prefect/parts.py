"""Parts of a flow as flow runs of their own; where Prefect's server does not answer, the same work without it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

import httpx
from prefect.exceptions import ObjectNotFound

from shoal.engine.settings.addresses import masked
from shoal.engine.store.run_events import Event, warning_lines
from shoal.engine.store.run_folder import RunFolder

Found = TypeVar("Found")

LOST = "prefect_lost"
"""Event of a run: from here on its work is done without Prefect."""
AWAY = (httpx.HTTPError, ObjectNotFound)
"""What Prefect raises where its server is gone, too busy to answer, or has forgotten a flow run."""


def log_warnings(log: logging.Logger | logging.LoggerAdapter[logging.Logger], events: Sequence[Event]) -> None:
    """Log the warnings among some events of a run once more, as the closing lines of a flow run.

    Args:
        log: of the flow run.
        events: in the order in which they happened.
    """
    lines = warning_lines(events)
    if lines:
        log.warning("\n".join([f"warnings ({len(lines)}):", *lines]))


def part(name: str, flow_run: Callable[[], Found], plain: Callable[[], Found], folder: RunFolder | None) -> Found:
    """What a part of a flow gives, as a flow run of its own or else without Prefect.

    A flow run whose beginning or end could not be told counts for nothing: `plain` finds what was done, or does it.

    Args:
        name: of the part, for people.
        flow_run: carries it out as a flow run.
        plain: carries out the same without Prefect; repeating what is done already changes nothing.
        folder: of the run, whose events say so; None: there is no run yet.
    """
    try:
        return flow_run()
    except AWAY as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        message = masked(f"Prefect does not answer ({first[:200]}); {name} is carried out without it")
        if folder is not None:
            folder.event(LOST, message=message)
        logging.getLogger(__name__).warning(message)
        return plain()
