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
    timeout = resolve_timeout(workers, device)
    if workers.runner == "sites":
        yield SitesPool(ServerTransport(open_study(), timeout))
    elif workers.runner == "local":
        with WorkerProcesses(resolve_slots(workers.slots, device), device, timeout) as processes:
            yield processes
    else:
        with dask_pool(workers, device) as cluster:
            yield cluster
