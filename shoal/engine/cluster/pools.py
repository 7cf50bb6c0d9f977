"""Where worker slots are: processes of this machine, or the workers of a Dask cluster.

Every pool has `count`, how many requests it works on at once, `most`, how many it may be given (a cluster has a queue,
where workers that join find work), and `call`, which has a free worker do one request.
Requests and answers are small (`shoal.engine.messages.wire`) and tensors stay in files, so that a cluster needs no more
than to see the run's folder, the prepared data and the partition under the paths that this machine has for them, or
copies of them (`shoal.engine.cluster.remote_files`). A request that is done twice leaves the same bits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

from shoal.engine.cluster.dask_pool import dask_pool
from shoal.engine.cluster.remote_pool import RemoteFilesPool
from shoal.engine.messages.wire import Answer, Request
from shoal.engine.settings.hardware import resolve_slots
from shoal.engine.settings.sections import WorkersSection
from shoal.engine.workers.worker_processes import WorkerProcesses


class Pool(Protocol):
    """What the engine needs of workers."""

    @property
    def count(self) -> int:
        """How many requests are worked on at once."""
        ...

    @property
    def most(self) -> int:
        """How many requests may be given to it at once; those that no worker is free for wait there."""
        ...

    def call(self, request: Request) -> Answer:
        """Have a free worker do a request; wait for one if all are busy.

        Raises:
            WorkerLost: the process that worked on it ended.
            ClusterLost: no worker can be reached any more (`shoal.engine.cluster.cluster_work`).
        """
        ...


@contextlib.contextmanager
def open_pool(workers: WorkersSection, device: str) -> Iterator[Pool]:
    """The workers that the settings ask for, closed at the end.

    Args:
        workers: of the run's settings.
        device: cpu or cuda, as resolved.

    Raises:
        SettingsError: Dask is not installed, or its scheduler cannot be reached.
    """
    with contextlib.ExitStack() as stack:
        if workers.runner == "local":
            count = resolve_slots(workers.slots, device)
            yield stack.enter_context(WorkerProcesses(count, device))
            return
        cluster = stack.enter_context(dask_pool(workers, device))
        if workers.remote_files:
            yield stack.enter_context(contextlib.closing(RemoteFilesPool(cluster, workers.remote_files)))
        else:
            yield cluster
