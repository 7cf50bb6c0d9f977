"""Where worker slots are: processes of this machine, or the workers of a Dask or Ray cluster.

Every pool has `count`, how many requests it works on at once, and `call`, which has a free worker do one request.
Requests and answers are small (`engine.wire`) and tensors stay in files, so that a cluster needs no more than to see
the run's folder, the prepared data and the partition under the paths that this machine has for them, or copies of them
(`engine.remote_files`). A request that is done twice leaves the same bits.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from typing import Any, Protocol

import torch

from core.errors import ShoalError
from engine.hardware import keep_freed_memory, resolve_slots
from engine.remote_files import RemoteFilesPool, with_remote_files
from engine.settings import SettingsError, WorkersSection
from engine.wire import Answer, Failed, RemoteRequest, Request, answer_of, request_of
from engine.without_main import without_main
from engine.worker import Worker
from engine.worker_processes import WorkerLost, WorkerProcesses

QUIET = {"RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


class Pool(Protocol):
    """What the engine needs of workers."""

    count: int

    def call(self, request: Request) -> Answer:
        """Have a free worker do a request; wait for one if all are busy.

        Raises:
            WorkerLost: the process that worked on it ended.
        """
        ...


@contextlib.contextmanager
def open_pool(workers: WorkersSection, device: str) -> Iterator[Pool]:
    """The workers that the settings ask for, closed at the end.

    Args:
        workers: of the run's settings.
        device: cpu or cuda, as resolved.

    Raises:
        SettingsError: Dask or Ray is not installed, or its cluster cannot be reached.
    """
    with contextlib.ExitStack() as stack:
        if workers.runner == "local":
            count = resolve_slots(workers.slots, device, workers.per_gpu)
            yield stack.enter_context(WorkerProcesses(count, device))
            return
        cluster: DaskPool | RayPool
        if workers.runner == "dask":
            cluster = stack.enter_context(dask_pool(workers, device))
        else:
            cluster = stack.enter_context(ray_pool(workers, device))
        if workers.depot:
            yield stack.enter_context(contextlib.closing(RemoteFilesPool(cluster, workers.depot)))
        else:
            yield cluster


_here = threading.local()
"""Each thread's own workers: a Dask worker may have several threads, and two runs may share a cluster."""


def work(plain: dict[str, Any], device: str) -> dict[str, Any]:
    """Do a request in this process of a cluster; what was opened for the last request stays open.

    Args:
        plain: the request as plain values.
        device: where to compute.

    Returns:
        The answer as plain values.
    """
    torch.set_num_threads(1)  # also of this thread: the same bits wherever the work is done
    workers: dict[str, Worker] = _here.__dict__.setdefault("workers", {})
    if device not in workers:
        keep_freed_memory()
        workers[device] = Worker(device)
    request = request_of(plain)
    host = os.uname().nodename
    if isinstance(request, RemoteRequest):
        try:
            return with_remote_files(request, workers[device].handle).plain()
        except ShoalError as error:
            return Failed(f"worker {host}: {error}", type(error).__name__).plain()
    if not request.run.is_dir():
        return Failed(
            f"worker {host} does not see {request.run}: runs and data must lie on a file system that all workers "
            "share, under the same path (set SHOAL_HOME to it), or set workers.depot",
            "RunError",
        ).plain()
    return workers[device].handle(request).plain()


class DaskPool:
    """Workers of a Dask cluster, each taking one request at a time.

    Args:
        client: connected to the cluster.
        count: requests at once.
        device: where the workers compute.
        resources: what a request takes of a worker's declared resources.
    """

    def __init__(self, client: Any, count: int, device: str, resources: dict[str, float]) -> None:
        self.count = count
        self._client, self._device, self._resources = client, device, resources or None

    def call(self, request: Request | RemoteRequest) -> Answer:
        """As of `Pool`."""
        from distributed.client import FutureCancelledError
        from distributed.scheduler import KilledWorker

        future = self._client.submit(work, request.plain(), self._device, pure=False, resources=self._resources)
        try:
            return answer_of(request, future.result())
        except KilledWorker as killed:
            raise WorkerLost(f"a Dask worker ended in the middle of its work ({killed.last_worker})") from None
        except (FutureCancelledError, OSError) as error:
            raise WorkerLost(f"the Dask cluster dropped the work ({type(error).__name__})") from None


@contextlib.contextmanager
def dask_pool(workers: WorkersSection, device: str) -> Iterator[DaskPool]:
    """A Dask cluster: the one at `workers.address`, or one of processes on this machine."""
    try:
        import dask
        import distributed
    except ImportError:
        raise SettingsError("workers.runner: dask needs its package: pip install 'shoal[dask]'") from None
    with contextlib.ExitStack() as stack:
        if workers.address:
            try:
                client = stack.enter_context(distributed.Client(workers.address, timeout=30, set_as_default=False))
            except (OSError, ValueError) as error:
                raise SettingsError(
                    f"workers.address: no Dask scheduler answers at {workers.address} ({error}); start one with "
                    "`dask scheduler`, and workers with `dask worker ADDRESS --nthreads 1`"
                ) from None
            threads = sum(client.nthreads().values())
            count = threads if workers.slots == "auto" else int(workers.slots)
            if not threads:
                raise SettingsError(f"workers.address: the scheduler at {workers.address} has no worker yet")
        else:
            count = resolve_slots(workers.slots, device, workers.per_gpu)
            # A worker that is killed costs its own cohort: the engine knows which clients of it were finished.
            stack.enter_context(dask.config.set({"distributed.scheduler.allowed-failures": 0}))
            # For as long as the cluster lives: a worker that is lost is started again.
            stack.enter_context(without_main("Dask Worker process"))
            cluster = stack.enter_context(
                distributed.LocalCluster(
                    n_workers=count,
                    threads_per_worker=1,
                    processes=True,
                    dashboard_address=None,
                    resources=dict(workers.resources) or None,
                    silence_logs=50,
                )
            )
            client = stack.enter_context(distributed.Client(cluster, set_as_default=False))
        yield DaskPool(client, count, device, dict(workers.resources))


class RayPool:
    """Tasks of a Ray cluster.

    Args:
        count: requests at once.
        device: where they compute.
        options: of the Ray task: num_cpus, num_gpus, resources.
    """

    def __init__(self, count: int, device: str, options: dict[str, Any]) -> None:
        import ray

        self.count = count
        self._device = device
        self._remote = ray.remote(max_retries=0, **options)(work)

    def call(self, request: Request | RemoteRequest) -> Answer:
        """As of `Pool`."""
        import ray

        try:
            return answer_of(request, ray.get(self._remote.remote(request.plain(), self._device)))
        except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError) as lost:
            raise WorkerLost(f"a Ray worker ended in the middle of its work ({type(lost).__name__})") from None


@contextlib.contextmanager
def ray_pool(workers: WorkersSection, device: str) -> Iterator[RayPool]:
    """A Ray cluster: the one at `workers.address`, or one on this machine."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise SettingsError("workers.runner: ray needs its package: pip install 'shoal[ray]'") from None
    gpus = 1.0 / workers.per_gpu if device == "cuda" else 0.0
    cpus = 0.0 if gpus else 1.0
    began = not ray.is_initialized()
    if began and workers.address:
        try:
            ray.init(address=workers.address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError) as error:
            raise SettingsError(
                f"workers.address: no Ray cluster answers at {workers.address} ({error}); start one with "
                "`ray start --head`"
            ) from None
    elif began:
        count = resolve_slots(workers.slots, device, workers.per_gpu)
        ray.init(
            num_cpus=max(count, 1),
            resources=dict(workers.resources) or None,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    try:
        have = ray.cluster_resources()
        most = int(have.get("GPU", 0) * workers.per_gpu) if gpus else int(have.get("CPU", 0))
        if most < 1:
            raise SettingsError(f"workers.runner: the Ray cluster has no {'GPU' if gpus else 'CPU'} to work on")
        count = most if workers.slots == "auto" else min(int(workers.slots), most)
        options = {"num_cpus": cpus, "num_gpus": gpus, "resources": dict(workers.resources) or None}
        yield RayPool(count, device, {key: value for key, value in options.items() if value})
    finally:
        if began:
            ray.shutdown()
