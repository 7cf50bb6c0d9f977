"""Worker slots on a Dask cluster of the user."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

from shoal.core.errors import ShoalError
from shoal.engine.cluster.cluster_work import work
from shoal.engine.messages.wire import Answer, Request
from shoal.engine.settings.addresses import fill_variables, masked
from shoal.engine.settings.hardware import resolve_timeout
from shoal.engine.settings.run_settings import SettingsError
from shoal.engine.settings.sections import WorkersSection
from shoal.engine.workers.worker_processes import Progress, WorkerLost

POLL_SECONDS = 1.0
"""Time between two looks whether a worker has answered."""
MAX_IN_FLIGHT = 256
"""Requests to have at once in a cluster that may grow: those without a worker wait there for one that joins."""
MAX_STEP_SECONDS = 2.0
"""Most time between two looks at a clock that counts: in a longer pause this process was stopped itself."""
CONNECT_SECONDS = 30.0
"""Time in which a scheduler must answer when a run begins."""
RECONNECT_SECONDS = 20.0
"""Time in which a lost connection to a scheduler must be restored."""
SILENT_SECONDS = 45.0
"""Time for which a connected scheduler may send nothing."""
NO_WORKER_SECONDS = 45.0
"""Time for which a cluster may have no worker, if `workers.timeout` does not say otherwise."""
NOISY_LOGGERS = ("distributed", "distributed.client", "tornado.application")
"""Loggers that write tracebacks when a scheduler is gone, which the run's own error reports in a sentence."""


class ClusterLost(ShoalError):
    """The cluster itself is gone, and with it every worker; the run stops and can be resumed."""


class SchedulerWatch:
    """Measures how long the scheduler of a cluster has sent nothing, and how long the cluster has had no worker.

    It sends no request of its own, since a stopped scheduler would never answer. The client asks the scheduler every
    few seconds for the number of its workers' threads, and keeps the answer, a new object each time, which is read
    here. Time in which this process was stopped does not count.

    Args:
        client: connected to the cluster.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._clock = WallClock()
        self._last_answer: Any = None
        self._answered_at = 0.0
        self._empty_since: float | None = None

    def measure(self) -> tuple[float, float]:
        """Return for how many seconds there was no answer, and no worker; call this at least every two seconds."""
        with self._lock:
            self._clock.update()
            now = self._clock.spent
            answer = self._client._scheduler_identity
            if answer is not self._last_answer:
                self._last_answer = answer
                self._answered_at = now
                if answer.get("total_threads", 1):
                    self._empty_since = None
                elif self._empty_since is None:
                    self._empty_since = now
            empty = 0.0 if self._empty_since is None else now - self._empty_since
            return now - self._answered_at, empty


class WallClock:
    """The time since this clock was made; time in which this process was stopped does not count."""

    def __init__(self) -> None:
        self.spent = 0.0
        self._updated_at = time.monotonic()

    def update(self) -> None:
        """Bring `spent` up to now; call this at least every `MAX_STEP_SECONDS`."""
        now = time.monotonic()
        self.spent += min(now - self._updated_at, MAX_STEP_SECONDS)
        self._updated_at = now


def work_on_dask(request: Request, device: str, topic: str, number: int) -> Answer:
    """Do a request (`work`), with events on `topic` that request `number` begins and goes on."""
    import distributed

    worker = distributed.get_worker()
    progress = Progress(lambda: worker.log_event(topic, number))
    progress()
    return work(request, device, progress)


class DaskPool:
    """Workers of a Dask cluster, each taking one request at a time.

    Args:
        client: connected to the cluster.
        count: requests at once.
        device: device of the workers.
        address: of the scheduler, for people.
        grows: whether to use workers that join later.
        no_worker_seconds: time for which the cluster may have no worker.
        timeout: minutes in which a worker must finish a client or a step, or answer; None: it may take any time.
    """

    def __init__(
        self,
        client: Any,
        count: int,
        device: str,
        *,
        address: str = "",
        grows: bool = False,
        no_worker_seconds: float = NO_WORKER_SECONDS,
        timeout: float | None = None,
    ) -> None:
        self._client = client
        self._count = count
        self._device = device
        self._address = address
        self._grows = grows
        self._no_worker_seconds = no_worker_seconds
        self._timeout = timeout
        self._watch = SchedulerWatch(client)
        self._closed = threading.Event()
        self._number = 0
        self._clocks: dict[int, WallClock | None] = {}
        """For each request the time since it began, or was last known to go on, by an event of its worker; None: it
        waits for one."""
        self._lock = threading.Lock()
        # The scheduler sends this by itself: a request to a scheduler that is gone would never return.
        self._topic = f"shoal-{uuid.uuid4().hex}"
        client.subscribe_topic(self._topic, lambda event: self._goes_on(event[1]))

    @property
    def count(self) -> int:
        """The number of requests that are worked on at once, with workers that have joined since the start."""
        if self._grows:
            # The client knows this without a request to the scheduler.
            self._count = self._client._scheduler_identity.get("total_threads") or self._count
        return self._count

    @property
    def max_requests(self) -> int:
        """See `shoal.engine.cluster.pool_interface.Pool`; a growing cluster has requests ready for new workers."""
        if self._grows:
            return max(self.count, MAX_IN_FLIGHT)
        return self.count

    def close(self) -> None:
        """End every `call` that waits for an answer."""
        self._closed.set()

    def call(self, request: Request) -> Answer:
        """Have a free worker do a request; see `shoal.engine.cluster.pool_interface.Pool`.

        Raises:
            WorkerLost: the worker was lost. ClusterLost: the scheduler is gone, or has no worker.
        """
        from distributed.client import FutureCancelledError
        from distributed.scheduler import KilledWorker

        with self._lock:
            self._number += 1
            number = self._number
        self._clocks[number] = None
        future = None
        try:
            self._connected(request)
            future = self._client.submit(
                work_on_dask,
                request,
                self._device,
                self._topic,
                number,
                pure=False,
            )
            while True:
                with contextlib.suppress(TimeoutError):
                    answer: Answer = future.result(POLL_SECONDS)
                    return answer
                self._connected(request)
                if self._hangs(number):
                    future.cancel(force=True)
                    raise WorkerLost(
                        f"a Dask worker finished neither a client nor a step in {self._timeout:.3g} minutes "
                        "(workers.timeout) and was given up"
                    )
        except KilledWorker as killed:
            raise WorkerLost(f"a Dask worker ended in the middle of its work ({killed.last_worker})") from None
        except (FutureCancelledError, OSError, UnboundLocalError) as error:
            # `Future.result` raises the last if the future is cancelled while it waits: dask/distributed 8514.
            if isinstance(error, UnboundLocalError) and (future is None or future.status != "cancelled"):
                raise
            self._connected(request)
            raise WorkerLost("the Dask cluster dropped the work") from None
        finally:
            self._clocks.pop(number, None)
            del future  # so that the scheduler forgets it

    def _goes_on(self, number: int) -> None:
        if number in self._clocks:
            self._clocks[number] = WallClock()

    def _hangs(self, number: int) -> bool:
        """Return whether a request that has begun has not gone on for too long."""
        clock = self._clocks.get(number)
        if clock is None or self._timeout is None:
            return False
        clock.update()
        return clock.spent > 60 * self._timeout

    def _connected(self, request: Request) -> None:
        """Wait for a lost scheduler to come back; return only if it answers and has workers, or may soon get some.

        Raises:
            ClusterLost: it does not come back, or no worker does. WorkerLost: this pool is closed.
        """
        scheduler = f"the Dask scheduler at {self._address}"
        resume = f"then resume with `shoal run --resume {request.run.name}`"
        restart = f"start scheduler and workers again, {resume}"
        end = time.monotonic() + RECONNECT_SECONDS
        while self._client.status != "running" and not self._closed.is_set():
            if self._client.status in ("closing", "closed") or time.monotonic() > end:
                raise ClusterLost(f"{scheduler} is gone: {restart}")
            self._closed.wait(0.1)
        if self._closed.is_set():
            raise WorkerLost("the Dask cluster was closed")
        silent, empty = self._watch.measure()
        if silent > SILENT_SECONDS:
            raise ClusterLost(f"{scheduler} has not answered for {silent:.0f} s: {restart}")
        if empty > self._no_worker_seconds:
            raise ClusterLost(
                f"{scheduler} has had no worker for {empty:.0f} s: start workers (`dask worker ADDRESS --nthreads 1`), "
                f"{resume}"
            )


@contextlib.contextmanager
def dask_pool(workers: WorkersSection, device: str) -> Iterator[DaskPool]:
    """Yield the workers of the running Dask cluster at `workers.address`.

    Raises:
        SettingsError: Dask is not installed, or no scheduler with workers answers at `workers.address`.
    """
    try:
        import distributed
    except ImportError:
        raise SettingsError("workers.runner: dask needs the package distributed: pip install distributed") from None
    no_worker_seconds = math.inf if workers.timeout is None else NO_WORKER_SECONDS
    if isinstance(workers.timeout, float):
        no_worker_seconds = 60 * workers.timeout
    address = workers.address or ""
    with contextlib.ExitStack() as stack:
        for name in NOISY_LOGGERS:
            stack.enter_context(distributed.utils.silence_logging_cmgr(logging.CRITICAL, name))
        filled = fill_variables(address, "workers.address")
        try:
            client = distributed.Client(filled, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"workers.address: no Dask scheduler answers at {address} ({masked(str(error))}); start "
                "one with `dask scheduler`, and workers with `dask worker ADDRESS --nthreads 1`"
            ) from None
        stack.callback(close_client, client)
        count = sum(client.nthreads().values())
        if not count:
            raise SettingsError(f"workers.address: the scheduler at {address} has no worker yet: start one")
        grows = workers.slots == "auto"
        if not grows:
            count = int(workers.slots)
        pool = DaskPool(
            client,
            count,
            device,
            address=address,
            grows=grows,
            no_worker_seconds=no_worker_seconds,
            timeout=resolve_timeout(workers, device),
        )
        yield stack.enter_context(contextlib.closing(pool))


def close_client(client: Any) -> None:
    """Close a connection to a cluster, even if the cluster does not answer any more."""
    with contextlib.suppress(Exception):  # nothing is left to do there
        client.close(timeout=RECONNECT_SECONDS / 4)
