"""The task that prepares a run's data set."""

from __future__ import annotations

from dataclasses import dataclass

from prefect import task

from shoal.engine.settings.run_settings import Settings
from shoal.lifecycle.preparing import gather, prepare_data
from shoal.tasks.prefect.retries import RETRY_ON_IO


@dataclass(frozen=True)
class PreparedData:
    """A data set of the store: its folder and the digest of its bytes."""

    folder: str
    digest: str


@task(name="prepare", **RETRY_ON_IO)
def prepare(settings: Settings) -> PreparedData:
    """Prepare the data set, unless the store has it; sites are asked what they have now.

    Raises:
        ShoalError: there is no such set, or the method does not accept it.
    """
    gather(settings)
    prepared = prepare_data(settings)
    return PreparedData(str(prepared.folder), prepared.manifest.digest)
