"""The task that tests for drift: new samples that differ from the old ones for the champion's model."""

from __future__ import annotations

from pathlib import Path

from prefect import task

from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.night_settings import NightSettings
from shoal.review.served.drift import Drift, find_drift
from shoal.tasks.prefect.retries import RETRY_ON_IO


@task(name="drift", **RETRY_ON_IO)
def drift(champion: str, data: str, night: NightSettings, seed: int) -> list[Drift]:
    """Compare the newest samples with the older ones, as the champion's model sees them.

    Args:
        champion: folder of the champion's run.
        data: folder of the data set.
        night: sets the probability of a false alarm.
        seed: of the random draws.
    """
    return find_drift(RunFolder(Path(champion)), Path(data), night.drift, seed)
