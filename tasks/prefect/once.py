"""A unit of work that is executed exactly once in this process, even where Prefect starts its task run late or never.

The runner takes a ticket for each unit that it submits as a task run. By the ticket the task finds the unit's single
execution. On another host the ticket is unknown, and the task executes the unit itself.
"""

from __future__ import annotations

import itertools
import os
import threading
from concurrent.futures import Future
from typing import Any

from shoal.engine.rounds.units import Unit, active_run_of, execute


class SingleExecution:
    """A unit of work that is executed at most once; its outcome does not depend on Prefect.

    Args:
        unit: the work.
    """

    def __init__(self, unit: Unit) -> None:
        self.outcome: Future[Any] = Future()
        self._unit = unit
        self._active_run = active_run_of(unit)
        self._start = threading.Lock()

    def __call__(self) -> None:
        """Execute the unit unless it was started before; exceptions are kept in `outcome` and raised."""
        if not self._start.acquire(blocking=False):
            return
        try:
            self.outcome.set_result(execute(self._unit, self._active_run))
        except BaseException as error:
            self.outcome.set_exception(error)
            raise


_tickets: dict[str, SingleExecution] = {}
_numbers = itertools.count(1)


def ticket_prefix() -> str:
    """Return the beginning of the tickets of this process."""
    return f"{os.uname().nodename}-{os.getpid()}-"


def take_ticket(execution: SingleExecution) -> str:
    """Return a ticket by which `execute_once` finds the execution in this process, until it is done."""
    ticket = f"{ticket_prefix()}{next(_numbers)}"
    _tickets[ticket] = execution
    execution.outcome.add_done_callback(lambda _: _tickets.pop(ticket, None))
    return ticket


def execute_once(unit: Unit, ticket: str | None) -> Any:
    """Execute the unit of a task run, unless it was executed already.

    Args:
        unit: the work.
        ticket: from the runner that submitted the unit; None where nobody took one.

    Returns:
        What `unit.execute` returns. None where the runner is in this process and has the answer already: Prefect would
        keep every answer in memory until the flow ends.
    """
    if ticket is None or not ticket.startswith(ticket_prefix()):
        return execute(unit)
    execution = _tickets.get(ticket)
    if execution is not None:  # else it is done: a task run that Prefect begins late finds nothing left to do
        execution()
    return None
