"""Pools of workers: processes of this machine, the workers of a Dask cluster, or sites.

Requests and answers are small (`shoal.engine.messages.wire`), and tensors stay in files: a cluster must see the run's
folder, the prepared data and the partition under the same paths as this machine. A request that is done twice leaves
the same bits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from shoal.engine.cluster.dask_pool import dask_pool
from shoal.engine.cluster.pool_interface import Pool
from shoal.engine.settings.hardware import resolve_slots, resolve_timeout
from shoal.engine.settings.sections import WorkersSection
from shoal.engine.sites.server import ServerTransport
from shoal.engine.sites.sites_pool import SitesPool
from shoal.engine.sites.study import open_study
from shoal.engine.workers.worker_processes import WorkerProcesses


@contextlib.contextmanager
def open_pool(workers: WorkersSection, device: str) -> Iterator[Pool]:
    """Yield the pool that the settings describe, and close it at the end.

    Args:
        workers: of the run's settings.
        device: cpu or cuda, as resolved.

    Raises:
        SettingsError: Dask is not installed, or its scheduler cannot be reached. ShoalError: no study is led from here.
    """
    with contextlib.ExitStack() as stack:
        if workers.runner == "local":
            count = resolve_slots(workers.slots, device)
            yield stack.enter_context(WorkerProcesses(count, device, resolve_timeout(workers, device)))
            return
        if workers.runner == "sites":
            yield SitesPool(ServerTransport(open_study(), resolve_timeout(workers, device)))
            return
        yield stack.enter_context(dask_pool(workers, device))
