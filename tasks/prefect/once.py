"""A unit of work that is done exactly once in this process, whatever becomes of the task run that shows it.

Who submits a unit as a task run takes a ticket for it. The task finds the unit's one carrying-out by the ticket; where
the ticket is not known (on another host) the task carries the unit out itself.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from shoal.engine.rounds.units import Unit, active_run_of, execute


class Once:
    """A unit of work that is carried out at most once; its outcome is kept apart from what Prefect makes of it."""

    def __init__(self, unit: Unit, begun: Callable[[], None] | None = None) -> None:
        self.outcome: Future[Any] = Future()
        self._unit, self._tell, self._held = unit, begun, active_run_of(unit)
        self._begun = threading.Lock()

    def __call__(self) -> None:
        """Carry the unit out unless it was begun before; exceptions are kept in `outcome` and raised."""
        if not self._begun.acquire(blocking=False):
            return
        try:
            self.outcome.set_result(execute(self._unit, self._tell, self._held))
        except BaseException as error:
            self.outcome.set_exception(error)
            raise


_tickets: dict[str, Once] = {}
_numbers = itertools.count(1)


def here() -> str:
    """What the tickets of this process begin with."""
    return f"{os.uname().nodename}-{os.getpid()}-"


def take_ticket(once: Once) -> str:
    """A word by which `done_once` finds the work in this process, until it is done."""
    ticket = f"{here()}{next(_numbers)}"
    _tickets[ticket] = once
    once.outcome.add_done_callback(lambda _: _tickets.pop(ticket, None))
    return ticket


def done_once(unit: Unit, ticket: str | None) -> Any:
    """Carry out the unit that a task run was started for.

    Args:
        unit: the work.
        ticket: of whoever submitted it, if that was in this process.

    Returns:
        What `unit.execute` returns. None where the ticket's holder has that already: Prefect would keep every answer
        in memory until the flow ends.
    """
    if ticket is None or not ticket.startswith(here()):
        return execute(unit)
    once = _tickets.get(ticket)
    if once is not None:  # else it is done: a task run that Prefect begins late finds nothing left to do
        once()
    return None
