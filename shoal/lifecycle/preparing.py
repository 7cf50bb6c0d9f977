"""A run's data set and partition, made where they are not there yet."""

from __future__ import annotations

from pathlib import Path

from shoal.data.partition.store import ensure_partition, partition_folder
from shoal.data.partition.table import Partition
from shoal.data.prepared import Prepared
from shoal.engine.settings import places
from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.represent import has_clients
from shoal.lifecycle.choosing import known_choice
from shoal.lifecycle.preflight import check_method, check_validation
from shoal.lifecycle.progress import prepare_shown


def prepare_data(settings: Settings) -> Prepared:
    """The run's data set, prepared if it is not yet.

    Raises:
        ShoalError: there is no such set, or the method will not take it or its own settings: said before any work.
    """
    check_method(settings, places.store())
    return prepare_shown(settings.data.name, options=settings.data.options or None)


def settled(settings: Settings) -> Settings:
    """The settings with what they leave open, as far as it is known: the scheme of partitions, and the number of
    clusters where it was chosen before.
    """
    settings = with_scheme(settings)
    choice = known_choice(settings) if settings.chooses_clusters else None
    return settings if choice is None else settings.with_clusters(choice.clusters)


def with_scheme(settings: Settings) -> Settings:
    """The settings with the scheme that `partition.kind: auto` means for their data set: its own clients, or iid."""
    if settings.partition.kind != "auto":
        return settings
    return settings.settled(has_clients(settings.data.name, places.store()))


def prepare_partition(settings: Settings, prepared: Prepared) -> tuple[Path, Partition]:
    """The run's partition, made if it is not yet, and its folder."""
    check_validation(settings)
    settings = with_scheme(settings)
    scheme = settings.dataclass("partition")
    limit, seed = settings.data.limit, settings.seed
    partition = ensure_partition(places.store(), prepared, scheme, limit=limit, seed=seed)
    return partition_folder(places.store(), prepared, scheme, limit, seed), partition
