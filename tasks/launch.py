"""From settings to a run, and from a run to its result: what the command line, flows and studies share."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from core.errors import PartitionError
from data.partition.store import ensure_partition, partition_folder
from data.partition.table import Partition, load_partition
from data.prepared import Prepared
from engine import places
from engine.hardware import resolve, resolve_slots
from engine.lineage import lineage
from engine.one_thread import one_thread
from engine.opened_run import OpenedRun
from engine.pools import Pool, open_pool
from engine.preflight import check_method, check_validation
from engine.represent import has_clients
from engine.rounds import Engine, Observer, Runner, ThreadRunner
from engine.run_folder import FINISHED, RunFolder
from engine.settings import Settings
from review.progress import prepare_shown
from review.result import run_result
from review.tracking import Tracker


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


def new_run(settings: Settings, partition: Path | None = None) -> RunFolder:
    """Prepare data and partition and make the run's folder; everything wrong with the settings shows here.

    The run records the scheme of partitions that `partition.kind: auto` came to.

    Args:
        settings: of the run.
        partition: a stored partition to use instead of making one from the settings.

    Raises:
        ShoalError: the data, the partition or the method refuse the settings.
    """
    settings = settled(settings)
    resolved = resolve(settings)
    resolve_slots(settings.workers.slots, resolved["device"])
    if partition is None:
        check_validation(settings)
    prepared = prepare_data(settings)
    if partition is None:
        folder, table = prepare_partition(settings, prepared)
    else:
        folder, table = partition.resolve(), load_partition(partition)
        if table.data_digest != prepared.manifest.digest:
            raise PartitionError(f"the partition in {partition} is of another version of {prepared.manifest.name!r}")
    run = RunFolder.create(places.runs(), settings, lineage(settings, prepared, folder, table, resolved))
    try:
        opened = OpenedRun(run)
        with one_thread():
            opened.method.init_server(opened.federation)  # the method may refuse the data, or so many clients of it
    except BaseException:
        discard(run)
        raise
    return run


def discard(run: RunFolder) -> None:
    """Remove the folder of a run that never began."""
    shutil.rmtree(run.path)


def drive(
    run: RunFolder,
    *,
    runner_of: Callable[[int], Runner] | None = None,
    observers: Sequence[Observer] = (),
    slots: Pool | None = None,
) -> dict[str, Any]:
    """A run from wherever it stands to its end: rounds, figures, report, MLflow.

    Args:
        run: the run's folder.
        runner_of: makes what carries out units of work, given the number of slots; plain threads by default.
        observers: called with every event.
        slots: worker slots to use (and leave open); by default the run's own.

    Returns:
        The run's result (`review.result.run_result`).

    Raises:
        ShoalError: the run stopped and can be resumed. KeyboardInterrupt likewise.
    """
    settings = run.settings()
    with worker_slots(run, settings, slots) as pool:
        runner = runner_of(pool.count) if runner_of else ThreadRunner(pool.count + 1)
        tracker = Tracker(run, settings, places.mlflow_store()) if settings.tracking.mlflow else None
        watchers = [*observers, *([tracker.observe] if tracker else [])]
        engine = Engine(run, pool.call, runner, pool.count, watchers)
        ended = "FAILED"
        try:
            if tracker:
                tracker.start()
            engine.run_to_end()
            from review.cluster_sheets import draw_cluster_sheets
            from review.clusters import keep_clusters
            from review.figures import draw_figures  # here: matplotlib takes a second to import
            from review.report import write_report

            # The last unit of work on the slots: where a run has its table already, nothing is done.
            runner.submit("evaluate", "clusters of all samples", lambda: keep_clusters(run, pool.call)).result()
            draw_figures(run)
            draw_cluster_sheets(run)
            write_report(run)
            ended = "FINISHED"
        except KeyboardInterrupt:
            ended = "KILLED"
            raise
        finally:
            if tracker:
                tracker.finish(ended)
            if isinstance(runner, ThreadRunner):
                runner.close()
    return run_result(run)


@contextlib.contextmanager
def worker_slots(run: RunFolder, settings: Settings, given: Pool | None) -> Iterator[Pool]:
    """The slots to work on; own ones are closed at the end."""
    if given is not None:
        yield given
        return
    device = run.lineage()["resolved"]["device"]
    with open_pool(settings.workers, device) as own:
        yield own


def find_like(settings: Settings) -> RunFolder | None:
    """The newest run with these settings: a finished one first, else one that can be resumed."""
    digest = settled(settings).digest()
    found: RunFolder | None = None
    for path in sorted(places.runs().glob(f"*_{digest[:8]}*/settings.yaml"), reverse=True):
        run = RunFolder(path.parent)
        if run.settings().digest() != digest:
            continue
        if run.status()["state"] == FINISHED:
            return run
        found = found or run
    return found
