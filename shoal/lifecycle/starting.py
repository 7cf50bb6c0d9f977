"""From settings to the folder of a run: a new one, or one of the same settings that is there.

Where the number of clusters is left open it is chosen before the run's folder is made, so that a run never has another
number than its settings say.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from shoal.core.errors import PartitionError, ShoalError
from shoal.data.partition.table import Partition, load_partition
from shoal.engine.settings import places
from shoal.engine.settings.hardware import expected_slots, resolve
from shoal.engine.settings.one_thread import one_thread
from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.lineage import lineage
from shoal.engine.store.opened_run import OpenedRun
from shoal.engine.store.run_folder import RunFolder, in_order
from shoal.engine.store.warm_start import WarmStart, initial_state, origin_sha256
from shoal.lifecycle.choosing import choose_clusters
from shoal.lifecycle.preflight import check_validation
from shoal.lifecycle.preparing import prepare_data, prepare_partition, settled, with_scheme
from shoal.lifecycle.progress import progress


def new_run(
    settings: Settings, partition: Path | None = None, runs: Path | None = None, origin: WarmStart | None = None
) -> RunFolder:
    """Prepare data and partition and make the run's folder; everything wrong with the settings shows here.

    The run records the scheme of partitions that `partition.kind: auto` came to, and the number of clusters that
    `model.clusters: auto` came to; how this was chosen stands in its lineage and its first event.

    Args:
        settings: of the run.
        partition: a stored partition to use instead of making one from the settings.
        runs: where the run's folder is to lie; by default beside the others.
        origin: the state to start from; by default the method's own.

    Raises:
        ShoalError: the data, the partition or the method refuse the settings; WarmStartError: the origin does not fit.
    """
    settings = with_scheme(settings)
    resolved = resolve(settings)
    expected_slots(settings.workers, resolved["device"])
    if partition is None:
        check_validation(settings)
    prepared = prepare_data(settings)
    if partition is None:
        folder, table = prepare_partition(settings, prepared)
    else:
        folder, table = partition.resolve(), load_partition(partition)
        if table.data_digest != prepared.manifest.digest:
            raise PartitionError(f"the partition in {partition} is of another version of {prepared.manifest.name!r}")
    choice: dict[str, Any] = {}
    if settings.chooses_clusters:
        choice = choose_clusters(settings, prepared, folder, table, finished_run)
        settings = settings.with_clusters(choice["clusters"])
    facts = lineage(settings, prepared, folder, table, resolved)
    run = RunFolder.create(runs or places.runs(), settings, facts | ({"clusters_chosen": choice} if choice else {}))
    try:
        if choice:
            tried = f"{choice['min_clusters']} to {choice['max_clusters']}"
            told = f"{choice['clusters']} clusters, of {tried}: {choice['rule']}"
            run.event("clusters_chosen", message=told, clusters=choice["clusters"], curve=choice["curve"])
        tell_left_out(run, table)
        if origin is not None:
            origin.keep(run)
        opened = OpenedRun(run)
        with one_thread():
            initial_state(opened)  # the method may refuse the data, or so many clients of it
    except BaseException:
        discard(run)
        raise
    return run


def tell_left_out(run: RunFolder, table: Partition) -> None:
    """Say in the run's events which clients of the data set do not take part, because they have too few samples."""
    left_out = table.settings.get("left_out", {})
    if clients := left_out.get("clients"):
        message = f"clients that do not take part: {left_out['reason']}"
        run.event("clients_too_small", level="warning", message=message, clients=clients)


def finished_run(settings: Settings, partition: Path) -> RunFolder:
    """The finished run of these settings on a stored partition: one that is there, resumed or new."""
    digest = load_partition(partition).digest
    run = find_like(settings)
    if run is None or run.lineage()["partition"]["digest"] != digest:
        run = new_run(settings, partition)
    if not run.is_finished():
        from shoal.lifecycle.driving import drive  # here: a run whose number is known is planned without MLflow

        with progress(Console(stderr=True), "encoder, rounds") as observe:
            drive(run, observers=[observe])
    return run


def discard(run: RunFolder) -> None:
    """Remove the folder of a run that never began."""
    shutil.rmtree(run.path)


def has_settings(run: RunFolder, digest: str, origin: str | None = None) -> bool:
    """Whether a run was started with the settings of this digest; one whose settings cannot be trusted was not.

    Args:
        run: the run.
        digest: of the settings.
        origin: digest of the state that it started from; None: it started anew.
    """
    return same_settings(run, digest) and origin_sha256(run) == origin


def same_settings(run: RunFolder, digest: str) -> bool:
    """As `has_settings`, wherever the run started from."""
    try:
        return run.settings().digest() == digest
    except ShoalError:
        return False


def runs_like(settings: Settings) -> Iterator[RunFolder]:
    """The runs with these settings that were started anew, the newest first."""
    digest = settled(settings).digest()
    for path in reversed(in_order(places.runs(), f"*_{digest[:8]}*")):
        run = RunFolder(path.parent)
        if has_settings(run, digest):
            yield run


def find_like(settings: Settings) -> RunFolder | None:
    """The newest run with these settings: a finished one first, else one that can be resumed."""
    found: RunFolder | None = None
    for run in runs_like(settings):
        if run.is_finished():
            return run
        found = found or run
    return found
