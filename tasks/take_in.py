"""The task that adds new data to a night's data set."""

from __future__ import annotations

from prefect import task

from shoal.engine.settings.run_settings import Settings
from shoal.lifecycle import taking_in
from shoal.lifecycle.night_settings import NightSettings
from shoal.lifecycle.taking_in import TakenIn
from shoal.tasks.prefect.retries import RETRY_ON_IO


@task(name="take in", **RETRY_ON_IO)
def take_in(settings: Settings, night: NightSettings) -> TakenIn:
    """Bring the data set of a night up to date with its watched folder.

    Raises:
        ShoalError: new data are broken, wrong or do not fit; the set is unchanged.
    """
    return taking_in.take_in(settings, night)
