"""The task that deals a run's data set to its clients."""

from __future__ import annotations

from pathlib import Path

from prefect import task

from shoal.data.sets.prepared import open_prepared
from shoal.engine.settings.run_settings import Settings
from shoal.lifecycle.preparing import prepare_partition
from shoal.tasks.prefect.retries import RETRY_ON_IO


@task(name="partition", **RETRY_ON_IO)
def partition(settings: Settings, data: str) -> None:
    """Deal the samples to the clients, unless the store has that partition.

    Args:
        settings: of the run.
        data: folder of the prepared data set.

    Raises:
        ShoalError: the scheme refuses the data.
    """
    prepare_partition(settings, open_prepared(Path(data)))
