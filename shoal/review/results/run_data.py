"""The data that a run was made of, where they are still on this machine."""

from __future__ import annotations

from shoal.core.errors import ShoalError
from shoal.data.partition.table import Partition, load_partition
from shoal.data.sets.prepared import Prepared, open_prepared
from shoal.engine.store.run_folder import RunFolder


def run_data(run: RunFolder) -> tuple[Prepared, Partition] | None:
    """Return the data set and the partition of a run; None where either is not here, or is another one now.

    Args:
        run: the run's folder.
    """
    lineage = run.lineage()
    try:
        prepared = open_prepared(run.folder_of("data"))
        partition = load_partition(run.folder_of("partition"))
    except (ShoalError, OSError):
        return None
    same = prepared.manifest.digest == lineage.data.digest and partition.digest == lineage.partition.digest
    if not same:
        return None
    return prepared, partition
