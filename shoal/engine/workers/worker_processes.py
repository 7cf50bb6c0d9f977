"""Workers on this machine: persistent processes with one thread (or one GPU) each, which get requests over pipes.

Any number of slots gives the same bits: a client's work runs on one thread, from files, with its own random streams.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from shoal.core.errors import ShoalError
from shoal.engine.workers.without_main import WORKER_NAME, start_without_main

if TYPE_CHECKING:
    # Imported by type checkers only: the fork server should start before this process has imported torch.
    from shoal.engine.messages.wire import Answer, Request

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
PRELOADED = ["shoal.engine.workers.preloaded"]
"""Modules that the fork server imports."""
POLL_SECONDS = 0.5
"""Time between two looks whether a worker has answered."""
PROGRESS_SECONDS = 1.0
"""Shortest time between two words of a worker that its work goes on."""
PROGRESS = "progress"
JOIN_SECONDS = 5.0
"""Time in which a process must end or start; after it the fork server is killed."""


def start_fork_server() -> Any:
    """Start the fork server: another process, which imports what workers need and from which they are forked.

    It is a new process with one thread that has not used a GPU, so that a fork of it is safe. Ctrl-C in a terminal
    reaches it too, and does not end it, also while it imports: this process decides what an interrupt means.

    Returns:
        The multiprocessing context whose processes are forked from it.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    from multiprocessing import forkserver, resource_tracker

    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    resource_tracker.ensure_running()  # started within the next line it would unblock SIGINT
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the new process inherits this
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    return context


def kill_fork_server() -> None:
    """End the fork server, also in the middle of its imports: it keeps this process's output open."""
    from multiprocessing import forkserver

    pid = getattr(forkserver._forkserver, "_forkserver_pid", None)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class WorkerLost(ShoalError):
    """A worker process ended in the middle of its work."""


@dataclass
class WorkerProcess:
    """One worker process, which is started when it is needed, and again after it was lost.

    Args:
        number: number of its slot.
        device: device on which it computes.
        timeout: minutes in which it must finish a client or a step, or answer; None: it may take any time.
    """

    number: int
    device: str
    timeout: float | None = None
    process: Any = None
    pipe: Connection | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ended: bool = field(default=False, init=False)

    def call(self, request: Request) -> Answer:
        """Send a request and wait for the answer.

        Raises:
            WorkerLost: the process ended without an answer, or was ended because it hung.
        """
        pipe, process = self.ready()
        try:
            pipe.send(request)
            while self._speaks(pipe):
                answer: Answer | str = pipe.recv()
                if not isinstance(answer, str):
                    return answer
            reason = (
                f"finished neither a client nor a step in {self.timeout:.3g} minutes (workers.timeout) and was ended"
            )
        except (EOFError, OSError):
            process.join(JOIN_SECONDS)
            reason = f"ended in the middle of its work (exit code {process.exitcode})"
        self.close()
        raise WorkerLost(f"worker slot {self.number} {reason}") from None

    def _speaks(self, pipe: Connection) -> bool:
        """Wait for an answer or a word of progress; return False if the timeout passes without one.

        The wait is in short parts, so that time in which this process was stopped itself hardly counts.
        """
        waited = 0.0
        while not pipe.poll(POLL_SECONDS):
            waited += POLL_SECONDS
            if self.timeout is not None and waited > 60 * self.timeout:
                return False
        return True

    def ready(self) -> tuple[Connection, Any]:
        """Return the pipe to the process, and the process, after starting it if none is running.

        Raises:
            WorkerLost: `end` was called meanwhile.
        """
        with self._lock:
            if self.process is None or self.pipe is None or not self.process.is_alive():
                context = start_fork_server()
                pipe, inner = context.Pipe()
                name = f"{WORKER_NAME} {self.number}"
                process = context.Process(target=serve, args=(inner, self.device), daemon=True, name=name)
                start_without_main(process)
                inner.close()
                # Set only now: the slots may be closed meanwhile, and a process that has not started cannot be ended.
                self.pipe = pipe
                self.process = process
                if self._ended:  # during the start: nothing else would end the process
                    self.close()
            if self.process is None or self.pipe is None:
                raise WorkerLost("the worker slots are closed")
            return self.pipe, self.process

    def end(self) -> None:
        """Close for good, also while the process is being started."""
        self._ended = True
        self.close()

    def close(self) -> None:
        """End the process, also one that is stopped: its unfinished work is not needed."""
        process = self.process
        pipe = self.pipe
        self.process = None
        self.pipe = None
        if process is not None:
            process.kill()
            process.join(JOIN_SECONDS)
            if process.is_alive():  # only in name: the fork server, which should report its end, is stopped
                kill_fork_server()
                process.join(JOIN_SECONDS)
        if pipe is not None:
            pipe.close()


def serve(pipe: Connection, device: str) -> None:
    """Answer requests in a worker process until the pipe closes, as it does too when the parent is killed."""
    # Ctrl-C goes to the whole process group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from shoal.engine.settings.hardware import keep_freed_memory, one_arena
    from shoal.engine.workers.worker import Worker

    torch.set_num_threads(1)
    one_arena()
    keep_freed_memory()
    if device.startswith("cuda"):
        torch.cuda.set_device(device)

    def say(message: Answer | str) -> None:
        with contextlib.suppress(OSError):  # the parent is gone, which the next `recv` notices
            pipe.send(message)

    progress = Progress(lambda: say(PROGRESS))
    register_optimizer_step_post_hook(progress)
    worker = Worker(device, progress)
    while True:
        try:
            request = pipe.recv()
        except (EOFError, OSError):
            return
        say(worker.handle(request))


class Progress:
    """Tells now and then that work goes on; called after each client and each step of an optimiser.

    Args:
        tell: tells it.
    """

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._told = 0.0

    def __call__(self, *_: object) -> None:
        now = time.monotonic()
        if now - self._told >= PROGRESS_SECONDS:
            self._told = now
            self._tell()


class WorkerProcesses:
    """The slots of this machine; `call` may be used from many threads at once.

    Args:
        count: number of slots.
        device: cpu or cuda; slots share the GPUs in turn.
        timeout: see `WorkerProcess`.
    """

    def __init__(self, count: int, device: str = "cpu", timeout: float | None = None) -> None:
        self.count = self.max_requests = count
        self.processes = [WorkerProcess(number, _device(device, number), timeout) for number in range(count)]
        self._idle: queue.LifoQueue[WorkerProcess] = queue.LifoQueue()
        for slot in reversed(self.processes):
            self._idle.put(slot)
        self._closed = threading.Event()
        # The workers start while the caller prepares its run.
        self._starting = threading.Thread(target=self._start, daemon=True)
        self._starting.start()

    def _start(self) -> None:
        for slot in self.processes:
            if self._closed.is_set():
                return
            with contextlib.suppress(OSError, EOFError, WorkerLost):  # it is tried again when the slot is needed
                slot.ready()
            if self._closed.is_set():
                slot.end()

    def call(self, request: Request) -> Answer:
        """Have an idle slot do the request; wait for one if all are busy.

        Raises:
            WorkerLost: its process ended, or was ended because it hung; or the slots were closed.
        """
        slot = self._idle.get()
        try:
            if self._closed.is_set():
                raise WorkerLost("the worker slots are closed")
            return slot.call(request)
        finally:
            self._idle.put(slot)

    def close(self) -> None:
        """End all processes."""
        self._closed.set()
        self._starting.join(JOIN_SECONDS)
        if self._starting.is_alive():
            kill_fork_server()
        for slot in self.processes:
            slot.end()

    def __enter__(self) -> WorkerProcesses:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._closed.set()  # no further slot starts, which would start another fork server
        if kind is KeyboardInterrupt and self._starting.is_alive():
            kill_fork_server()  # it still imports for workers that nobody needs
        self.close()


def _device(device: str, number: int) -> str:
    """Return the device of a slot: cpu, or the GPU whose turn it is."""
    if device == "cpu":
        return device
    import torch

    return f"cuda:{number % torch.cuda.device_count()}"
