"""Worker slots on a Dask cluster: the user's, or one of processes on this machine."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

from shoal.engine.cluster import cluster_work
from shoal.engine.cluster.cluster_work import IN_FLIGHT, cluster_lost, free_slots, work
from shoal.engine.messages.wire import Answer, RemoteRequest, Request, answer_of
from shoal.engine.settings.addresses import masked, resolved
from shoal.engine.settings.hardware import resolve_slots
from shoal.engine.settings.run_settings import SettingsError
from shoal.engine.settings.sections import WorkersSection
from shoal.engine.workers.process_clock import WallClock
from shoal.engine.workers.without_main import without_main
from shoal.engine.workers.worker_processes import WorkerLost

ANSWER = 30.0
"""Seconds in which a scheduler must answer when a run begins."""
PATIENCE = 20.0
"""Seconds for a scheduler whose connection was lost to come back, and for what it is asked beside the work."""
SILENCE = 45.0
"""Seconds for which a scheduler that is connected may answer nothing."""
TALKERS = ("distributed", "distributed.client", "tornado.application")
"""Loggers that write tracebacks where a scheduler is gone, of which the run's own error tells in a sentence."""

NO_PAGES: dict[str, Any] = {"distributed.scheduler.http.routes": [], "distributed.worker.http.routes": []}
"""Without a dashboard Dask still listens for browsers, and tells whoever asks what it works on."""


class SchedulerWatch:
    """What the client of a cluster hears of its scheduler by itself, and since when it hears nothing, or of no worker.

    Nothing is asked: who asks a scheduler that is stopped waits for ever. The client asks it every few seconds for the
    number of its workers' threads and leaves the answer, a new object each time, where this looks. Time in which this
    process was stopped does not count.

    Args:
        client: connected to the cluster.
    """

    def __init__(self, client: Any) -> None:
        self._client, self._lock = client, threading.Lock()
        self._clock, self._heard = WallClock(), 0.0
        self._last: Any = None
        self._emptied: float | None = None

    def look(self) -> tuple[float, float]:
        """Seconds since it was heard, and since it was heard to have no worker; to be called every two seconds."""
        with self._lock:
            self._clock.look()
            now, said = self._clock.spent, self._client._scheduler_identity
            if said is not self._last:
                self._last, self._heard = said, now
                peopled = said.get("total_threads", 1)
                self._emptied = None if peopled else now if self._emptied is None else self._emptied
            return now - self._heard, 0.0 if self._emptied is None else now - self._emptied


def work_on_dask(plain: dict[str, Any], device: str, told: str, number: int) -> dict[str, Any]:
    """`work`, after telling whoever listens to the topic `told`, if anybody does, that request `number` begins."""
    if told:
        import distributed

        distributed.get_worker().log_event(told, number)
    return work(plain, device)


class DaskPool:
    """Workers of a Dask cluster, each taking one request at a time.

    Args:
        client: connected to the cluster.
        count: requests at once.
        device: where the workers compute.
        resources: what a request takes of a worker's declared resources.
        own: whether nobody else uses the cluster, so that a worker that hangs can be started anew.
        address: of the scheduler, for people.
        grows: whether workers that join later are to be used too.
        empty: seconds for which the cluster may have no worker.
    """

    def __init__(
        self,
        client: Any,
        count: int,
        device: str,
        resources: dict[str, float],
        *,
        own: bool = False,
        address: str = "",
        grows: bool = False,
        empty: float = 45.0,
    ) -> None:
        self._empty, self._watch = empty, SchedulerWatch(client)
        self._count, self._grows, self._address = count, grows, address
        self._client, self._device, self._resources, self._own = client, device, resources or None, own
        self._free = free_slots(count, own)
        self._closed = threading.Event()
        self._number, self._begun = 0, set[int]()
        self._lock = threading.Lock()
        # Told by the scheduler rather than asked of it: who asks a scheduler that is gone waits for ever.
        self._topic = "" if own else f"shoal-{uuid.uuid4().hex}"
        if self._topic:
            client.subscribe_topic(self._topic, lambda event: self._begun.add(event[1]))

    @property
    def count(self) -> int:
        """How many requests are worked on at once, those by workers that joined since included."""
        if self._grows:
            # What the client knows by itself: nothing is asked of the scheduler.
            self._count = self._client._scheduler_identity.get("total_threads") or self._count
        return self._count

    @property
    def most(self) -> int:
        """As of `shoal.engine.cluster.pools.Pool`: in a cluster that may grow, requests wait where a worker that joins
        finds them.
        """
        return max(self.count, IN_FLIGHT) if self._grows else self.count

    def close(self) -> None:
        """Have whoever waits for an answer stop waiting."""
        self._closed.set()

    def call(self, request: Request | RemoteRequest) -> Answer:
        """As of `Pool`.

        Raises:
            WorkerLost: as of `Pool`. ClusterLost: the scheduler is gone.
        """
        with self._free:
            return self._call(request)

    def _call(self, request: Request | RemoteRequest) -> Answer:
        from distributed.client import FutureCancelledError
        from distributed.scheduler import KilledWorker

        with self._lock:
            self._number += 1
            number = self._number
        clock = WallClock() if self._own else None
        future = None
        try:
            self._connected(request)
            future = self._client.submit(
                work_on_dask,
                request.to_json(),
                self._device,
                self._topic,
                number,
                pure=False,
                resources=self._resources,
            )
            while True:
                with contextlib.suppress(TimeoutError):
                    return answer_of(request, future.result(cluster_work.LOOK))
                self._connected(request)
                if clock is None:
                    clock = WallClock() if number in self._begun else None
                    continue
                clock.look()
                why = request.deadline.why(clock.spent, 0.0) if request.deadline else None
                if why:
                    self._end(future)
                    raise WorkerLost(f"a Dask worker was given up at {why}")
        except KilledWorker as killed:
            raise WorkerLost(f"a Dask worker ended in the middle of its work ({killed.last_worker})") from None
        except (FutureCancelledError, OSError, UnboundLocalError) as error:
            # The last is how `Future.result` ends where a future is cancelled while it waits: dask/distributed 8514.
            if isinstance(error, UnboundLocalError) and (future is None or future.status != "cancelled"):
                raise
            self._connected(request)
            raise WorkerLost("the Dask cluster dropped the work") from None
        finally:
            self._begun.discard(number)
            del future  # whereby the scheduler forgets it

    def _connected(self, request: Request | RemoteRequest) -> None:
        """Wait a while for a lost scheduler; go on only where it answers and has, or may yet get, workers.

        Raises:
            ClusterLost: it does not come back, or no worker does. WorkerLost: this pool is closed.
        """
        scheduler = f"the Dask scheduler at {self._address}" if self._address else "the Dask cluster of this run"
        end = time.monotonic() + PATIENCE
        while self._client.status != "running":
            if self._closed.is_set():
                break
            if self._client.status in ("closing", "closed") or time.monotonic() > end:
                raise cluster_lost(f"{scheduler} is gone", "start scheduler and workers again", request)
            self._closed.wait(0.1)
        if self._closed.is_set():
            raise WorkerLost("the Dask cluster was closed")
        silent, empty = self._watch.look()
        if silent > SILENCE:
            what = f"{scheduler} has not answered for {silent:.0f} s"
            raise cluster_lost(what, "start scheduler and workers again", request)
        if empty > self._empty:
            what = f"{scheduler} has had no worker for {empty:.0f} s"
            raise cluster_lost(what, "start workers (`dask worker ADDRESS --nthreads 1`)", request)

    def _end(self, future: Any) -> None:
        """Give up a request; its worker is started anew, where the cluster is ours."""
        at = [address for address, keys in self._client.processing().items() if future.key in keys] if self._own else []
        future.cancel(force=True)
        if at:
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
            for name in TALKERS:
                stack.enter_context(distributed.utils.silence_logging_cmgr(logging.CRITICAL, name))
            address = resolved(workers.address, "workers.address")
            try:
                client = distributed.Client(address, timeout=ANSWER, set_as_default=False)
            except (OSError, ValueError) as error:
                raise SettingsError(
                    f"workers.address: no Dask scheduler answers at {workers.address} ({masked(str(error))}); start "
                    "one with `dask scheduler`, and workers with `dask worker ADDRESS --nthreads 1`"
                ) from None
            stack.callback(close_client, client)
            threads = sum(client.nthreads().values())
            count = threads if workers.slots == "auto" else int(workers.slots)
            if not threads:
                raise SettingsError(f"workers.address: the scheduler at {workers.address} has no worker yet")
        else:
            count = resolve_slots(workers.slots, device, workers.per_gpu)
            # A worker that is killed costs its own cohort: the engine knows which clients of it were finished.
            stack.enter_context(dask.config.set({"distributed.scheduler.allowed-failures": 0, **NO_PAGES}))
            # For as long as the cluster lives: a worker that is lost is started again.
            stack.enter_context(without_main("Dask Worker process"))
            cluster = stack.enter_context(
                distributed.LocalCluster(
                    n_workers=count,
                    threads_per_worker=1,
                    processes=True,
                    host=workers.listen,
                    # Whoever talks to a scheduler or a worker runs any code there: that is for holders of this
                    # certificate alone, which never leaves these processes, and not for all users of the machine.
                    security=True,
                    dashboard_address=None,
                    resources=dict(workers.resources) or None,
                    silence_logs=50,
                )
            )
            client = distributed.Client(cluster, set_as_default=False)
            stack.callback(close_client, client)
        own, grows = not workers.address, bool(workers.address) and workers.slots == "auto"
        pool = DaskPool(
            client,
            count,
            device,
            dict(workers.resources),
            own=own,
            address=workers.address or "",
            grows=grows,
            empty=workers.no_worker_timeout,
        )
        yield stack.enter_context(contextlib.closing(pool))


def close_client(client: Any) -> None:
    """Close a connection to a cluster, also one that does not answer any more."""
    with contextlib.suppress(Exception):  # nothing is left to be done there
        client.close(timeout=PATIENCE / 4)
