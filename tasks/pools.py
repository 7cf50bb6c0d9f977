"""Workers that the engine does not know of: hosts that take their work from Prefect's server.

Importing this makes `workers.runner: prefect` known to `engine.pools`.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

from engine.pools import MAKERS, HostsPool
from engine.settings import WorkersSection


def of_prefect(workers: WorkersSection, device: str) -> AbstractContextManager[HostsPool]:
    """As of `tasks.prefect_pool.prefect_pool`, which is not imported before: Prefect takes seconds."""
    from tasks.prefect_pool import prefect_pool

    return prefect_pool(workers, device)


def check_server(workers: WorkersSection) -> None:
    """Refuse a run whose hosts could not be asked, before any work for it is done.

    Raises:
        SettingsError: PREFECT_API_URL is not set, or what is there does not answer as a Prefect server.
    """
    if workers.runner == "prefect":
        from tasks.prefect_pool import connected

        with contextlib.closing(connected()):
            pass


MAKERS["prefect"] = of_prefect
