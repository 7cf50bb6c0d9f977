"""A run's data set and partition, made where they are missing."""

from __future__ import annotations

import warnings
from pathlib import Path

from shoal.data.partition.store import ensure_partition, partition_folder
from shoal.data.partition.table import Partition
from shoal.data.sets.prepare import (
    has_clients,
    own_folder,
    prepare,
)
from shoal.data.sets.prepared import PreparedSet, read_manifest
from shoal.engine.settings import places
from shoal.engine.settings.run_settings import Settings, make_settings, resolve
from shoal.engine.sites.gathering import gather_set
from shoal.engine.sites.server import ServerTransport
from shoal.engine.sites.study import open_study
from shoal.engine.sites.transport import Transport
from shoal.engine.store.method_choice import MethodChoice
from shoal.lifecycle.choosing import known_number
from shoal.lifecycle.choosing_method import choose_method, known_method
from shoal.lifecycle.dvc_tracking import track
from shoal.lifecycle.preflight import check_method, known_spec
from shoal.methods.registry import METHODS

GATHER_MINUTES = 5
"""In which a site must describe its set, or say whether it would take part."""


def prepare_data(settings: Settings) -> PreparedSet:
    """Return the run's data set; prepare it where that was not done before.

    Raises:
        ShoalError: there is no such set, or the method refuses it or its settings.
    """
    check_method(settings)
    data = settings.data
    prepared = prepare(data.name, places.store(), mirror=places.mirror(), options=data.options)
    check_method(settings)  # by shapes that may have been unknown
    return prepared


def gather(settings: Settings) -> None:
    """Ask the sites of a run for their sets, where its samples lie at sites; DVC versions what they tell.

    Raises:
        ShoalError: their sets differ, or one refuses; or no study is led from here. SiteLost: one does not answer.
    """
    if settings.workers.runner != "sites":
        return
    name = settings.data.name
    folder = own_folder(places.store(), name)
    known = read_manifest(folder).digest if (folder / "manifest.json").exists() else None
    if gather_set(name, transport(), places.store()).digest != known:
        _, refused = track(folder)
        if refused:
            warnings.warn(refused, RuntimeWarning, stacklevel=2)


def transport() -> Transport:
    """Return what reaches the sites of the study that is led from here.

    Raises:
        ShoalError: there is none.
    """
    return ServerTransport(open_study(), GATHER_MINUTES)


def with_known_choices(settings: Settings) -> Settings:
    """Return the settings with all that they leave open and that is known: scheme, method, encoder, clusters."""
    settings = with_scheme(settings)
    if settings.chooses_method:
        method = known_method(settings)
        if method is None:
            return settings
        settings = resolve(settings, method=method.settings)
    settings = with_encoder(settings)
    if settings.chooses_clusters and (choice := known_number(settings)):
        return resolve(settings, clusters=choice.clusters)
    return settings


def with_scheme(settings: Settings) -> Settings:
    """Return the settings with what `partition.kind: auto` means for their data set: its own clients, or iid."""
    if settings.partition.kind != "auto":
        return settings
    return resolve(settings, own_clients=has_clients(settings.data.name, places.store()))


def with_encoder(settings: Settings) -> Settings:
    """Return the settings with the encoder that vectors and windows have in place of the method's default.

    Raises:
        MethodError: the settings name an encoder that does not take such data. DataError: there is no such set.
    """
    if settings.chooses_method or settings.model.start == "pretrained":
        return settings
    encoder = METHODS[settings.method.name].encoder_for(settings.model.encoder, known_spec(settings).kind)
    if encoder == settings.model.encoder:
        return settings
    values = settings.to_json()
    return make_settings({**values, "model": {**values["model"], "encoder": encoder}})


def prepare_partition(settings: Settings, prepared: PreparedSet) -> tuple[Path, Partition]:
    """Return the folder of the run's partition, and the partition; make it where that was not done before."""
    settings = with_scheme(settings)
    scheme = settings.partition
    limit = settings.data.limit
    seed = settings.seed
    partition = ensure_partition(places.store(), prepared, scheme, limit=limit, seed=seed)
    return partition_folder(places.store(), prepared, scheme, limit, seed), partition


def advise(settings: Settings) -> MethodChoice:
    """Return the method for some settings, whose method is auto.

    Raises:
        ShoalError: there is no such set, or it cannot be dealt to clients.
    """
    settings = with_scheme(settings)
    prepared = prepare_data(settings)
    _, table = prepare_partition(settings, prepared)
    return choose_method(settings, prepared, table)
