"""Worker slots on a Dask cluster: the user's, or one of processes on this machine."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

from engine import cluster_work
from engine.addresses import masked, resolved
from engine.cluster_work import free_slots, work
from engine.hardware import resolve_slots
from engine.process_clock import WallClock
from engine.settings import SettingsError, WorkersSection
from engine.wire import Answer, RemoteRequest, Request, answer_of
from engine.without_main import without_main
from engine.worker_processes import WorkerLost


def work_on_dask(plain: dict[str, Any], device: str, begun: str) -> dict[str, Any]:
    """`work`, after saying to whoever waits for the event `begun`, if anybody does, that it begins."""
    if begun:
        import distributed

        distributed.Event(begun).set()
    return work(plain, device)


class DaskPool:
    """Workers of a Dask cluster, each taking one request at a time.

    Args:
        client: connected to the cluster.
        count: requests at once.
        device: where the workers compute.
        resources: what a request takes of a worker's declared resources.
        own: whether nobody else uses the cluster, so that a worker that hangs can be started anew.
    """

    def __init__(self, client: Any, count: int, device: str, resources: dict[str, float], *, own: bool = False) -> None:
        self.count = count
        self._client, self._device, self._resources, self._own = client, device, resources or None, own
        self._free = free_slots(count, own)

    def call(self, request: Request | RemoteRequest) -> Answer:
        """As of `Pool`."""
        with self._free:
            return self._call(request)

    def _call(self, request: Request | RemoteRequest) -> Answer:
        from distributed import Event
        from distributed.client import FutureCancelledError
        from distributed.scheduler import KilledWorker

        begun = "" if self._own else f"shoal-{uuid.uuid4().hex}"
        event = Event(begun, client=self._client) if begun else None
        future = self._client.submit(
            work_on_dask, request.plain(), self._device, begun, pure=False, resources=self._resources
        )
        clock = WallClock() if self._own else None
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    return answer_of(request, future.result(cluster_work.LOOK))
                if clock is None:
                    clock = WallClock() if event and event.is_set() else None
                    continue
                clock.look()
                why = request.deadline.why(clock.spent, 0.0) if request.deadline else None
                if why:
                    self._end(future)
                    raise WorkerLost(f"a Dask worker was given up at {why}")
        except KilledWorker as killed:
            raise WorkerLost(f"a Dask worker ended in the middle of its work ({killed.last_worker})") from None
        except (FutureCancelledError, OSError) as error:
            raise WorkerLost(f"the Dask cluster dropped the work ({type(error).__name__})") from None
        finally:
            if event:
                event.clear()  # whereby the scheduler forgets it

    def _end(self, future: Any) -> None:
        """Give up a request; its worker is started anew, where the cluster is ours."""
        at = [address for address, keys in self._client.processing().items() if future.key in keys]
        future.cancel(force=True)
        if self._own and at:
            self._client.restart_workers(at, timeout=30, raise_for_error=False)


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
                client = stack.enter_context(
                    distributed.Client(resolved(workers.address, "workers.address"), timeout=30, set_as_default=False)
                )
            except (OSError, ValueError) as error:
                raise SettingsError(
                    f"workers.address: no Dask scheduler answers at {workers.address} ({masked(str(error))}); start "
                    "one with `dask scheduler`, and workers with `dask worker ADDRESS --nthreads 1`"
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
                    host=workers.listen,
                    dashboard_address=None,
                    resources=dict(workers.resources) or None,
                    silence_logs=50,
                )
            )
            client = stack.enter_context(distributed.Client(cluster, set_as_default=False))
        yield DaskPool(client, count, device, dict(workers.resources), own=not workers.address)
