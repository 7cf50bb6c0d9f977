"""The folder of a run from its settings: a new one, or one that has the same settings.

Where the number of clusters is left open it is chosen before the run's folder is made, so that a run never has another
number than its settings say.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from shoal.core.errors import PartitionError, ShoalError
from shoal.data.partition.table import Partition, load_partition
from shoal.data.sets.prepared import PreparedSet
from shoal.data.sets.remedy import SITES
from shoal.engine.settings import places
from shoal.engine.settings.hardware import resolve_machine, resolve_slots
from shoal.engine.settings.one_thread import one_thread
from shoal.engine.settings.run_settings import Settings, resolve
from shoal.engine.store.choice import Choice
from shoal.engine.store.lineage import make_lineage
from shoal.engine.store.method_choice import MethodChoice
from shoal.engine.store.run_events import WARNING
from shoal.engine.store.run_facts import RunFacts
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.run_order import in_order
from shoal.engine.store.warm_start import WarmStart, initial_state, origin_sha256
from shoal.lifecycle.choosing import Find, choose_clusters, find_here
from shoal.lifecycle.choosing_method import choose_method
from shoal.lifecycle.preflight import check_clusters, check_method, check_sums
from shoal.lifecycle.preparing import (
    gather,
    prepare_data,
    prepare_partition,
    with_encoder,
    with_known_choices,
    with_scheme,
)
from shoal.lifecycle.site_number import find_at_sites


def new_run(
    settings: Settings,
    partition: Path | None = None,
    origin: WarmStart | None = None,
    runs: Path | None = None,
) -> RunFolder:
    """Prepare data and partition and make the run's folder; everything wrong with the settings shows here.

    The run's settings hold the scheme that `partition.kind: auto` stands for, the method that was chosen for
    `method.name: auto`, and the number of clusters that was chosen for `model.clusters: auto`; its lineage and its
    first events say how these were chosen.

    Args:
        settings: of the run.
        partition: a stored partition to use instead of making one from the settings.
        origin: the state to start from; by default the method's own.
        runs: folder of the runs; by default that of all.

    Raises:
        ShoalError: the data, the partition or the method refuse the settings; WarmStartError: the origin does not fit.
    """
    gather(settings)
    settings = with_encoder(with_scheme(settings))
    resolved = resolve_machine(settings)
    if not settings.workers.elsewhere:
        resolve_slots(settings.workers.slots, resolved.device)
    prepared = prepare_data(settings)
    folder, table = prepare_partition(settings, prepared) if partition is None else stored(partition, prepared)
    check_clusters(settings, len(table.sample))
    check_sums(settings, table.clients)
    method = None
    if settings.chooses_method:
        method = choose_method(settings, prepared, table)
        settings = with_encoder(resolve(settings, method=method.settings))
        check_method(settings)
    clusters = None
    if settings.chooses_clusters:
        find: Find = find_here
        if SITES in prepared.manifest.extra:
            find = partial(find_at_sites, begin=kept_run)
        clusters = choose_clusters(settings, prepared, table, find)
        settings = resolve(settings, clusters=clusters.clusters)
    lineage = make_lineage(settings, prepared, folder, table, resolved)
    lineage = replace(lineage, clusters_chosen=clusters, method_chosen=method)
    run = RunFolder.create(runs or places.runs(), settings, lineage)
    try:
        record_choices(run, method, clusters)
        record_data(run, settings, prepared, table)
        if origin is not None:
            origin.keep(run)
        with one_thread():
            initial_state(RunFacts(run))  # the method may refuse the data, or so many clients
    except BaseException:
        shutil.rmtree(run.path)
        raise
    return run


def kept_run(settings: Settings, data_digest: str) -> RunFolder:
    """Return the run that serves others with these settings on this version of the set: a new one if there is none."""
    for path in places.baselines().glob("*/settings.yaml"):
        run = RunFolder(path.parent)
        if run.settings().digest() == settings.digest() and run.lineage().data.digest == data_digest:
            return run
    return new_run(settings, runs=places.baselines())


def stored(partition: Path, prepared: PreparedSet) -> tuple[Path, Partition]:
    """Return the folder of a stored partition of a data set, and the partition.

    Raises:
        PartitionError: it is of another version of the set.
    """
    table = load_partition(partition)
    if table.data_digest != prepared.manifest.digest:
        raise PartitionError(
            f"the partition in {partition} is of another version of {prepared.manifest.name!r}: make it again with "
            "`shoal data partition`"
        )
    return partition.resolve(), table


def record_choices(run: RunFolder, method: MethodChoice | None, clusters: Choice | None) -> None:
    """Write to the run's events which method and number of clusters were chosen, and which settings are unused."""
    if method is not None:
        run.event("method_chosen", message=method.reason)
        if method.unused:
            run.event("settings_unused", level=WARNING, message=method.unused)
    if clusters is not None:
        tried = f"of {clusters.min_clusters} to {clusters.max_clusters}"
        message = f"{clusters.clusters} clusters, {tried}: {clusters.rule}"
        if clusters.doubt:
            message += f"; do not trust this number: {clusters.doubt}"
        run.event("clusters_chosen", message=message)


def record_data(run: RunFolder, settings: Settings, prepared: PreparedSet, table: Partition) -> None:
    """Write to the run's events which clients and samples count for nothing, and whether columns are standardised."""
    left_out = table.settings.get("left_out", {})
    if clients := left_out.get("clients"):
        message = f"clients that do not take part: {left_out['reason']}"
        run.event("clients_too_small", level=WARNING, message=message, clients=clients)
    least = getattr(settings.method, "min_points", 1)
    held = float(np.median(table.counts()))
    if held < 2 * least:
        message = (
            f"half of the clients hold {held:g} samples or fewer, and method.min_points={least} leaves out clusters of "
            f"fewer than {least} at a client: centres may be off (of 2 samples a client inertia was 4 to 25 % higher); "
            "let clients hold more, or set method.min_points=1, which tells single samples"
        )
        run.event("samples_left_out", level=WARNING, message=message)
    if prepared.spec.kind != "image" and getattr(settings.method, "standardise", True) is None:
        done = "columns are taken as they are: they are of one scale"
        if prepared.spec.measurements:
            done = "columns are standardised over the federation: they are measurements"
        run.event("scale_of_columns", message=f"{done} (method.standardise=true or false decides otherwise)")


def runs_with(settings: Settings) -> Iterator[RunFolder]:
    """Yield the runs with these settings, whatever state they started from, the newest first; skip damaged settings."""
    digest = with_known_choices(settings).digest()
    for path in reversed(in_order(places.runs(), f"*_{digest[:8]}*")):
        run = RunFolder(path.parent)
        try:
            same = run.settings().digest() == digest
        except ShoalError:
            continue
        if same:
            yield run


def runs_like(settings: Settings, origin: str | None = None, data: str | None = None) -> Iterator[RunFolder]:
    """Yield the runs with these settings that started from one state, the newest first.

    Args:
        settings: of the runs.
        origin: digest of the state; None: the method's own.
        data: digest of the data set that they were started on; None: any.
    """
    for run in runs_with(settings):
        if origin_sha256(run) == origin and data in (None, run.lineage().data.digest):
            yield run


def find_like(settings: Settings, data: str | None = None) -> RunFolder | None:
    """Return the newest run with these settings: a finished one first, else one that can be resumed.

    Args:
        settings: of the run.
        data: as of `runs_like`.
    """
    return max(runs_like(settings, data=data), key=RunFolder.is_finished, default=None)
