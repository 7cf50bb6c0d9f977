"""The task that prepares a run's data set."""

from __future__ import annotations

from dataclasses import dataclass

from prefect import task

from shoal.engine.settings.run_settings import Settings
from shoal.lifecycle.preparing import prepare_data
from shoal.tasks.prefect.retries import OF_A_RUN


@dataclass(frozen=True)
class PreparedData:
    """A data set of the store: its folder and the digest of its bytes."""

    folder: str
    digest: str


@task(name="prepare", **OF_A_RUN)
def prepare(settings: Settings) -> PreparedData:
    """Prepare the data set, unless it is in the store.

    Raises:
        ShoalError: there is no such set, or the method will not take it.
    """
    prepared = prepare_data(settings)
    return PreparedData(str(prepared.folder), prepared.manifest.digest)
