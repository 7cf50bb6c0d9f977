"""Worker slots on a Ray cluster: the user's, or one on this machine."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import psutil

from engine import cluster_work
from engine.addresses import masked, resolved
from engine.cluster_work import cluster_lost, free_slots, work
from engine.hardware import resolve_slots, slots_per_gpu
from engine.process_clock import WallClock
from engine.settings import SettingsError, WorkersSection
from engine.wire import Answer, RemoteRequest, Request, answer_of
from engine.worker_processes import WorkerLost

LOOPBACK = "127.0.0.1"
RAY_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Where it is 0, Ray's processes know this machine as 127.0.0.1 and listen there alone, on any system."""
PATIENCE = 20.0
"""Seconds for a head that does not answer to come back; after 60 Ray ends every process that is connected to it."""
SETTINGS_FRAME = b"\0\0\0\4\0\0\0\0\0"
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS_FRAME
"""How a connection of HTTP/2 begins: its preface and an empty frame of settings."""
TOKEN_MODE = "RAY_AUTH_MODE"
WANTS_TOKEN = f"set {TOKEN_MODE}=token, which sends yours to that address"
QUIET = {"RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def work_on_ray(plain: dict[str, Any], device: str) -> Iterator[Any]:
    """`work`, after saying where it begins (host and process id): a cluster may have a queue."""
    yield os.uname().nodename, os.getpid()
    yield work(plain, device)


def start_ray(workers: WorkersSection, slots: int) -> None:
    """A Ray cluster of this machine that listens where the settings say: whoever reaches it runs code here.

    Raises:
        SettingsError: it listens elsewhere.
    """
    import ray
    from ray._private import ray_constants

    inside = workers.listen == LOOPBACK
    before = os.environ.get(RAY_LOOPBACK), getattr(ray_constants, "ENABLE_RAY_CLUSTER", None)
    if inside:
        os.environ[RAY_LOOPBACK] = "0"
        ray_constants.ENABLE_RAY_CLUSTER = False  # which was read from the variable when Ray was imported
    try:
        ray.init(
            address="local",  # never one that happens to run on this machine
            num_cpus=max(slots, 1),
            resources=dict(workers.resources) or None,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _node_ip_address=None if inside or workers.listen == "0.0.0.0" else workers.listen,
        )
    finally:
        if inside:
            ray_constants.ENABLE_RAY_CLUSTER = before[1]
            if before[0] is None:
                del os.environ[RAY_LOOPBACK]
            else:
                os.environ[RAY_LOOPBACK] = before[0]
    address = ray.nodes()[0]["NodeManagerAddress"]
    if inside and address != LOOPBACK:
        ray.shutdown()
        raise SettingsError(
            f"workers.listen: Ray {ray.__version__} listens on {address} instead of {LOOPBACK}: set workers.listen to "
            "that address if nobody else reaches it, or use workers.runner=dask"
        )


class RayPool:
    """Tasks of a Ray cluster.

    Args:
        count: requests at once.
        device: where they compute.
        options: of the Ray task: num_cpus, num_gpus, resources.
        own: whether nobody else uses the cluster, which is of this machine.
        head: address of the head's control service, host:port, which is looked at all the time; empty: it is not.
        empty: seconds for which the cluster may have nothing to work on.
    """

    def __init__(
        self,
        count: int,
        device: str,
        options: dict[str, Any],
        *,
        own: bool = False,
        head: str = "",
        empty: float = 45.0,
    ) -> None:
        import ray

        self._head, self._gone, self._closed = head, threading.Event(), threading.Event()
        self._empty, self._emptied, self._asking = empty, threading.Event(), threading.Lock()
        self._needs = "GPU" if options.get("num_gpus") else "CPU"
        if head:
            # At once: of one that is stopped before it was ever heard it cannot be told whether it is behind TLS.
            self._spoke = answers(head)
            threading.Thread(target=self._watch, daemon=True, name="shoal ray head").start()
            threading.Thread(target=self._watch_nodes, daemon=True, name="shoal ray nodes").start()
        self.count = self.most = count
        self._device, self._own = device, own
        self._free = free_slots(count, own)
        self._remote = ray.remote(max_retries=0, num_returns="streaming", **options)(work_on_ray)

    def call(self, request: Request | RemoteRequest) -> Answer:
        """As of `Pool`.

        Raises:
            WorkerLost: as of `Pool`. ClusterLost: the head is gone.
        """
        with self._free:
            return self._watched(request)

    def _watched(self, request: Request | RemoteRequest) -> Answer:
        """A request on a thread of its own: Ray may ask a head that is stopped, which it waits for without end."""
        found: Future[Answer] = Future()

        def act() -> None:
            try:
                found.set_result(self._call(request))
            except BaseException as error:
                found.set_exception(error)

        threading.Thread(target=act, daemon=True, name="shoal ray request").start()
        while not wait([found], cluster_work.LOOK).done:
            self._reached(request)
        return found.result()

    @property
    def gone(self) -> bool:
        """Whether the head does not answer any more."""
        return self._gone.is_set()

    def close(self) -> None:
        """Have whoever waits for an answer stop waiting."""
        self._closed.set()
        if self._asking.acquire(timeout=PATIENCE / 4):  # a head that is stopped answers no question
            self._asking.release()

    def _watch(self) -> None:
        """Notice that the head is gone before Ray does, which then ends this process, whatever it is doing."""
        seen, spoke = time.monotonic(), self._spoke
        while not self._closed.wait(PATIENCE / 10):
            if answers(self._head):
                seen, spoke = time.monotonic(), True
            elif not spoke and listens(self._head):  # behind TLS, where it does not answer this
                seen = time.monotonic()
            elif time.monotonic() - seen > PATIENCE:
                self._gone.set()
                return

    def _watch_nodes(self) -> None:
        """Notice that no node is left to work on; apart from the other watch, since a stopped head answers nothing."""
        import ray

        clock = WallClock()
        while not self._closed.wait(PATIENCE / 10):
            clock.look()
            with self._asking:  # not once the connection is gone: who asks then starts another cluster
                if self._closed.is_set() or not ray.is_initialized():
                    return
                try:
                    left = ray.cluster_resources().get(self._needs, 0.0)
                except Exception:  # of which the head's own watch tells
                    continue
            if left > 0:
                clock = WallClock()
                self._emptied.clear()
            elif clock.spent > self._empty:
                self._emptied.set()

    def _call(self, request: Request | RemoteRequest) -> Answer:
        import ray

        clock = WallClock() if self._own else None
        place: tuple[str, int] | None = None
        try:
            self._reached(request)
            told: Any = self._remote.remote(request.plain(), self._device)
            while True:
                self._reached(request)
                if ray.wait([told], timeout=cluster_work.LOOK)[0]:
                    found = ray.get(next(told))
                    if place is not None:
                        return answer_of(request, found)
                    place, clock = found, WallClock()
                elif clock is not None:
                    clock.look()
                    why = request.deadline.why(clock.spent, 0.0) if request.deadline else None
                    if why:
                        self._end(told, place)
                        raise WorkerLost(f"a Ray worker was given up at {why}")
        except (ray.exceptions.RayTaskError, ray.exceptions.RuntimeEnvSetupError):
            raise  # not a loss: on any other worker it would fail as well
        except ray.exceptions.RayError as lost:  # the process, its node, its memory or what it answered
            self._reached(request)
            raise WorkerLost(f"a Ray worker ended in the middle of its work ({type(lost).__name__})") from None
        except StopIteration:
            raise WorkerLost("a Ray worker ended in the middle of its work (without an answer)") from None

    def _reached(self, request: Request | RemoteRequest) -> None:
        """Go on only where the cluster is there.

        Raises:
            ClusterLost: its head is gone, or every node. WorkerLost: this pool is closed.
        """
        import ray

        if self.gone:
            raise cluster_lost(f"the Ray head at {self._head} is gone", "start the cluster again", request)
        if self._emptied.is_set():
            what = f"the Ray cluster at {self._head} has had no {self._needs} to work on for {self._empty:.0f} s"
            raise cluster_lost(what, "start nodes (`ray start --address ADDRESS`)", request)
        if self._closed.is_set() or not ray.is_initialized():  # to ask Ray would start another cluster
            raise WorkerLost("the Ray cluster is closed")

    def _end(self, told: Any, place: tuple[str, int] | None) -> None:
        """Give up a request and end its process; one that is stopped on another host does not hear of it."""
        import ray

        if place is not None and place[0] == os.uname().nodename:
            pids = [place[1]]
        else:
            pids = stopped_tasks() if self._own else []  # stopped before it said where it is
            ray.cancel(told, force=True)
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def listens(address: str) -> bool:
    """Whether anything listens at an address, host:port."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=2.0):
            return True
    except OSError:
        return False


def answers(address: str) -> bool:
    """Whether a gRPC server at an address, host:port, answers: the system takes connections of a stopped one, too.

    Such a server greets whoever connects with the settings that it takes, which no login comes before (RFC 9113, 3.4).
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=2.0) as server:
            server.sendall(GREETING)
            return server.recv(len(SETTINGS_FRAME)) != b""
    except OSError:
        return False


def let_go(gone: bool) -> None:
    """End the connection to a cluster; where its head does not answer, only as far as that goes without it.

    Nobody may know yet that it does not: a run can come to its end on workers that need no head for that.
    """
    import ray

    leaving = threading.Thread(target=ray.shutdown, daemon=True, name="shoal leaves ray")
    leaving.start()
    leaving.join(PATIENCE / 4 if gone else PATIENCE)
    if leaving.is_alive():
        atexit.unregister(ray.shutdown)  # which would wait for the head as well


def token_untold() -> bool:
    """Whether this user has a token of Ray and nobody said whether to use it.

    Since 2.60 Ray makes one for the first cluster that a process starts for itself, and every head that is started
    later by the same user then asks for it.
    """
    named = any(os.environ.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    return TOKEN_MODE not in os.environ and (named or (Path.home() / ".ray" / "auth_token").is_file())


def stopped_tasks() -> list[int]:
    """Process ids of the tasks of this process's Ray cluster that are stopped."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            named = process.cmdline()[:1]
            if named and work_on_ray.__name__ in named[0] and process.status() == psutil.STATUS_STOPPED:
                found.append(process.pid)
    return found


@contextlib.contextmanager
def ray_pool(workers: WorkersSection, device: str) -> Iterator[RayPool]:
    """A Ray cluster: the one at `workers.address`, or one on this machine."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    address = resolved(workers.address, "workers.address") if workers.address else ""
    untold = token_untold()
    with contextlib.ExitStack() as stack:
        if untold and address.rpartition(":")[0] in (LOOPBACK, "localhost"):
            # As Ray does where it finds a cluster of this machine by itself; one that asks for no token takes it too.
            os.environ[TOKEN_MODE] = "token"
            stack.callback(os.environ.pop, TOKEN_MODE, None)
        stack.enter_context(quiet_raylets())
        yield stack.enter_context(connected(workers, device, address, untold))


@contextlib.contextmanager
def quiet_raylets() -> Iterator[None]:
    """Keep Ray from printing the last screens of a lost node's log, over and over, among what the run prints.

    It does so whatever it is told of logs (`log_to_driver`); that a node was lost is among the events of the run.
    """
    from importlib import import_module

    try:
        inside: Any = import_module("ray._private.worker")
        shown = inside.print_to_stdstream
    except (ImportError, AttributeError):  # not installed, or a Ray that prints otherwise
        yield
        return

    def without_raylets(data: dict[str, Any], *args: Any, **more: Any) -> None:
        if data.get("pid") != "raylet":
            shown(data, *args, **more)

    inside.print_to_stdstream = without_raylets
    try:
        yield
    finally:
        inside.print_to_stdstream = shown


@contextlib.contextmanager
def connected(workers: WorkersSection, device: str, address: str, untold: bool) -> Iterator[RayPool]:
    """Workers of the cluster at an address, or of one on this machine.

    Args:
        workers: of the run's settings.
        device: where they compute.
        address: of the head; empty: a cluster is started.
        untold: as of `token_untold`.
    """
    try:
        import ray
    except ImportError:
        raise SettingsError("workers.runner: ray needs its package: pip install 'shoal[ray]'") from None
    gpus = 1.0 / slots_per_gpu(workers.per_gpu) if device == "cuda" else 0.0
    cpus = 0.0 if gpus else 1.0
    began = not ray.is_initialized()
    if began and address:
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError) as error:
            raise SettingsError(
                f"workers.address: no Ray cluster answers at {workers.address} ({masked(str(error))}); start one "
                "with `ray start --head`"
                + (f". If it asks for a token, as it does by default where there is one: {WANTS_TOKEN}" * untold)
            ) from None
    elif began:
        start_ray(workers, resolve_slots(workers.slots, device, workers.per_gpu))
    pool = None
    try:
        have = ray.cluster_resources()
        most = int(have.get("GPU", 0) * slots_per_gpu(workers.per_gpu)) if gpus else int(have.get("CPU", 0))
        if most < 1:
            raise SettingsError(f"workers.runner: the Ray cluster has no {'GPU' if gpus else 'CPU'} to work on")
        count = most if workers.slots == "auto" else min(int(workers.slots), most)
        options = {"num_cpus": cpus, "num_gpus": gpus, "resources": dict(workers.resources) or None}
        pool = RayPool(
            count,
            device,
            {key: value for key, value in options.items() if value},
            own=began and not workers.address,
            head=ray.get_runtime_context().gcs_address,
            empty=workers.empty,
        )
        with contextlib.closing(pool):
            yield pool
    finally:
        if began:
            let_go(pool is not None and pool.gone)
