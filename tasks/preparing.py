"""A run's data set and partition, made where they are not there yet."""

from __future__ import annotations

from pathlib import Path

from data.partition.store import ensure_partition, partition_folder
from data.partition.table import Partition
from data.prepared import Prepared
from engine import places
from engine.preflight import check_method, check_validation
from engine.represent import has_clients
from engine.settings import Settings
from review.progress import prepare_shown


def prepare_data(settings: Settings) -> Prepared:
    """The run's data set, prepared if it is not yet.

    Raises:
        ShoalError: there is no such set, or the method will not take it or its own settings: said before any work.
    """
    check_method(settings, places.store())
    return prepare_shown(settings.data.name, options=settings.data.options or None)


def settled(settings: Settings) -> Settings:
    """The settings with the scheme that `partition.kind: auto` means for their data set: its own clients, or iid."""
    if settings.partition.kind != "auto":
        return settings
    return settings.settled(has_clients(settings.data.name, places.store()))


def prepare_partition(settings: Settings, prepared: Prepared) -> tuple[Path, Partition]:
    """The run's partition, made if it is not yet, and its folder."""
    check_validation(settings)
    settings = settled(settings)
    scheme = settings.dataclass("partition")
    limit, seed = settings.data.limit, settings.seed
    partition = ensure_partition(places.store(), prepared, scheme, limit=limit, seed=seed)
    return partition_folder(places.store(), prepared, scheme, limit, seed), partition
