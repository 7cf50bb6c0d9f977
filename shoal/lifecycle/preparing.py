"""A run's data set and partition, made where they are missing."""

from __future__ import annotations

from pathlib import Path

from shoal.data.partition.store import ensure_partition, partition_folder
from shoal.data.partition.table import Partition
from shoal.data.prepared import Prepared
from shoal.engine.settings import places
from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.represent import has_clients
from shoal.lifecycle.choosing import known_choice
from shoal.lifecycle.choosing_method import known_method
from shoal.lifecycle.preflight import check_method, check_validation
from shoal.lifecycle.progress import prepare_shown


def prepare_data(settings: Settings) -> Prepared:
    """Return the run's data set; prepare it where that was not done before.

    Raises:
        ShoalError: there is no such set, or the method refuses it or its settings.
    """
    check_method(settings, places.store())
    return prepare_shown(settings.data.name, options=settings.data.options or None)


def settled(settings: Settings) -> Settings:
    """Return the settings with what they leave open: the partition scheme, a known method and number of clusters."""
    settings = with_scheme(settings)
    if settings.chooses_method:
        method = known_method(settings)
        if method is None:
            return settings
        settings = settings.with_method(method.settings)
    if not settings.chooses_clusters:
        return settings
    choice = known_choice(settings)
    if choice is None:
        return settings
    return settings.with_clusters(choice.clusters)


def with_scheme(settings: Settings) -> Settings:
    """Return the settings with what `partition.kind: auto` means for their data set: its own clients, or iid."""
    if settings.partition.kind != "auto":
        return settings
    return settings.settled(has_clients(settings.data.name, places.store()))


def prepare_partition(settings: Settings, prepared: Prepared) -> tuple[Path, Partition]:
    """Return the folder of the run's partition, and the partition; make it where that was not done before."""
    check_validation(settings)
    settings = with_scheme(settings)
    scheme = settings.dataclass("partition")
    limit = settings.data.limit
    seed = settings.seed
    partition = ensure_partition(places.store(), prepared, scheme, limit=limit, seed=seed)
    return partition_folder(places.store(), prepared, scheme, limit, seed), partition
