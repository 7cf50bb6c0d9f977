"""Where worker slots are: processes of this machine, the workers of a Dask or Ray cluster, or what a room above adds.

Every pool has `count`, how many requests it works on at once, `most`, how many it may be given (a cluster has a queue,
where workers that join find work), and `call`, which has a free worker do one request.
Requests and answers are small (`engine.wire`) and tensors stay in files, so that a cluster needs no more than to see
the run's folder, the prepared data and the partition under the paths that this machine has for them, or copies of them
(`engine.remote_files`). A request that is done twice leaves the same bits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from engine.dask_pool import dask_pool
from engine.hardware import resolve_slots
from engine.ray_pool import ray_pool
from engine.remote_pool import RemoteFilesPool
from engine.settings import SettingsError, WorkersSection
from engine.wire import Answer, RemoteRequest, Request
from engine.worker_processes import WorkerProcesses


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
            ClusterLost: no worker can be reached any more (`engine.cluster_work`).
        """
        ...


class HostsPool(Protocol):
    """Workers that may be on other hosts: they take requests whose files are copies, too."""

    @property
    def count(self) -> int:
        """As of `Pool`."""
        ...

    @property
    def most(self) -> int:
        """As of `Pool`."""
        ...

    def call(self, request: Request | RemoteRequest) -> Answer:
        """As of `Pool`."""
        ...


MAKERS: dict[str, Callable[[WorkersSection, str], AbstractContextManager[HostsPool]]] = {
    "dask": dask_pool,
    "ray": ray_pool,
}
"""By runner: given the settings and the device, makes workers on other hosts, closed at the end.

What the engine must not know is added by the room that knows it (`tasks.pools`)."""


@contextlib.contextmanager
def open_pool(workers: WorkersSection, device: str) -> Iterator[Pool]:
    """The workers that the settings ask for, closed at the end.

    Args:
        workers: of the run's settings.
        device: cpu or cuda, as resolved.

    Raises:
        SettingsError: the runner's package is not installed, or its cluster or server cannot be reached.
    """
    with contextlib.ExitStack() as stack:
        if workers.runner == "local":
            count = resolve_slots(workers.slots, device, workers.per_gpu)
            yield stack.enter_context(WorkerProcesses(count, device))
            return
        if workers.runner not in MAKERS:
            raise SettingsError(
                f"workers.runner: {workers.runner} is not of the engine: import tasks.pools, which adds it"
            )
        cluster = stack.enter_context(MAKERS[workers.runner](workers, device))
        if workers.depot:
            yield stack.enter_context(contextlib.closing(RemoteFilesPool(cluster, workers.depot)))
        else:
            yield cluster
