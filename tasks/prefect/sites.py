"""A flow run whose sites are away: paused, and resumed when all of them are connected."""

from __future__ import annotations

import contextlib
import threading

from prefect import get_run_logger, pause_flow_run, resume_flow_run, runtime

from shoal.core.errors import ShoalError
from shoal.engine.settings import places
from shoal.engine.settings.run_settings import Settings
from shoal.engine.sites.server import status_of
from shoal.engine.sites.study import open_study

POLL_SECONDS = 5
MOST_SECONDS = 7 * 24 * 3600
"""So long a flow run is paused; after that it fails, and its run can be resumed."""


def wait_for_sites(settings: Settings) -> bool:
    """Pause this flow run while a site of its study is away; return whether one was.

    Raises:
        FlowPauseTimeout: it was for a week.
    """
    if settings.workers.runner != "sites":
        return False
    away = sites_away()
    if not away:
        return False
    get_run_logger().warning(f"paused, and goes on by itself: {'; '.join(away)}")
    flow_run = runtime.flow_run.id
    ended = threading.Event()

    def resume() -> None:
        while not ended.wait(POLL_SECONDS):
            if not sites_away():
                with contextlib.suppress(Exception):  # Prefect is out of reach, or it is not paused yet
                    resume_flow_run(flow_run)

    threading.Thread(target=resume, daemon=True).start()
    try:
        pause_flow_run(timeout=MOST_SECONDS, poll_interval=POLL_SECONDS)
    finally:
        ended.set()
    return True


def sites_away() -> list[str]:
    """Return a sentence for each site that is not connected, or one where nobody can tell.

    Raises:
        ShoalError: no study is led from here.
    """
    study = open_study(places.home())
    try:
        told = status_of(study)
    except ShoalError as error:
        return [str(error)]
    return [f"site {site} is not connected" for site, status in told.items() if not status.connected]
