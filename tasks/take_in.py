"""The task that takes new data into a night's data set."""

from __future__ import annotations

from prefect import task

from shoal.engine.settings.run_settings import Settings
from shoal.lifecycle import taking_in
from shoal.lifecycle.night_settings import NightSettings
from shoal.lifecycle.taking_in import TakenIn
from shoal.tasks.prefect.retries import OF_A_RUN


@task(name="take in", **OF_A_RUN)
def take_in(settings: Settings, night: NightSettings) -> TakenIn:
    """Bring the data set of a night up to date with the folder that it watches.

    Raises:
        ShoalError: new data are broken, wrong or do not fit; the set is then as it was.
    """
    return taking_in.take_in(settings, night)
