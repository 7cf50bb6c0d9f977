"""Partitions in the store: one folder for each data set, scheme, limit and seed, made once.

data/store/partitions/mnist-dirichlet-3f2a91bc/
partition.parquet  partition.json  summary.csv
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from shoal.core.durable import new_version
from shoal.core.errors import PartitionError, short_text, shown
from shoal.core.names import name_fault
from shoal.data.partition.make import GROUPS, make_partition
from shoal.data.partition.schemes import PartitionSettings
from shoal.data.partition.summary import summary
from shoal.data.partition.table import Partition, load_partition, save_partition
from shoal.data.sets.csv_file import write_csv
from shoal.data.sets.prepared import PreparedSet

NAMES = ("clients", GROUPS)
"""Of a set of one's own: they may change where samples do not."""


def partition_folder(
    store: Path, prepared: PreparedSet, settings: PartitionSettings, limit: int | None, seed: int
) -> Path:
    """Return the folder of a partition: its name ends in 8 hexadecimal digits of all that determines it."""
    key = json.dumps(
        {
            "settings": asdict(settings),
            "limit": limit,
            "seed": seed,
            "data": prepared.manifest.digest,
        }
        | {name: prepared.manifest.extra[name] for name in NAMES if name in prepared.manifest.extra},
        sort_keys=True,
    )
    digest = hashlib.sha256(key.encode()).hexdigest()[:8]
    name = prepared.manifest.name
    if fault := name_fault(name):
        raise PartitionError(f"the data set in {prepared.folder} cannot be partitioned: its name {shown(name)} {fault}")
    return store / "partitions" / f"{name}-{settings.kind}-{digest}"


def write_partition(partition: Partition, prepared: PreparedSet, folder: Path) -> None:
    """Write the table, its manifest and summary.csv to `folder`, which appears whole or not at all."""
    with new_version(folder) as scratch:
        save_partition(partition, scratch)
        write_csv(summary(partition, prepared), scratch / "summary.csv")


def ensure_partition(
    store: Path,
    prepared: PreparedSet,
    settings: PartitionSettings,
    *,
    limit: int | None = None,
    seed: int = 0,
) -> Partition:
    """Return the stored partition of these settings; make and store it if it is missing or another one.

    Args:
        store: the store.
        prepared: the data set.
        settings: the scheme.
        limit, seed: see `make_partition`.

    Raises:
        PartitionError: it cannot be made (see `make_partition`).
    """
    folder = partition_folder(store, prepared, settings, limit, seed)
    stored = _stored(folder, prepared)
    if stored is not None:
        return stored
    made = make_partition(settings, prepared, limit=limit, seed=seed)
    try:
        write_partition(made, prepared, folder)
    except OSError as error:
        # Another process may have put the same partition there at the same moment.
        if _stored(folder, prepared) is None:
            raise PartitionError(f"the partition could not be written to {folder}: {short_text(error)}") from error
    return made


def _stored(folder: Path, prepared: PreparedSet) -> Partition | None:
    try:
        stored = load_partition(folder)
    except PartitionError:
        return None
    return stored if stored.data_digest == prepared.manifest.digest else None
