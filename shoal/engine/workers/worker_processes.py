"""Workers on this machine: persistent processes, one thread each (or one GPU each), fed over pipes.

Any number of slots gives the same bits: a client's work runs on one thread, from files, with its own random streams.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from shoal.core.errors import ShoalError
from shoal.engine.workers.process_clock import ProcessClock
from shoal.engine.workers.without_main import WORKER, without_main

if TYPE_CHECKING:
    # Not imported: `warm` is to begin before this process has waited for torch.
    from shoal.engine.messages.wire import Answer, Deadline, Request

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
PRELOADED = ["shoal.engine.workers.worker", "torch._dynamo"]
"""What workers need (torch's optimisers want the latter), imported once, by the process that they are forked from."""
POLL_SECONDS = 0.5
"""Seconds between looks at whether a worker hangs."""
WAIT = 5.0
"""Seconds for a process to end, or to start, before it is helped."""


def warm() -> Any:
    """Begin to import, in a process beside this one, what worker processes need; they are forked from that process.

    It is a fresh one, with one thread and nothing of a GPU touched, so that a fork of it is safe.

    Returns:
        The context whose processes start that way.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    from multiprocessing import forkserver

    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        forkserver.ensure_running()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    return context


def cool() -> None:
    """End the process that `warm` began, also in the middle of its imports: it holds this process's output open."""
    from multiprocessing import forkserver

    pid = getattr(forkserver._forkserver, "_forkserver_pid", None)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class WorkerLost(ShoalError):
    """A worker process ended in the middle of its work."""


@dataclass
class WorkerProcess:
    """One worker process; started when it is needed, and again after it was lost."""

    number: int
    device: str
    process: Any = None
    pipe: Connection | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _watched: tuple[Any, Deadline, ProcessClock] | None = field(default=None, init=False)
    _hangs: str | None = field(default=None, init=False)
    _ended: bool = field(default=False, init=False)

    def call(self, request: Request) -> Answer:
        """Send a request and wait for the answer.

        Raises:
            WorkerLost: the process ended without an answer, or was ended because it hangs.
        """
        pipe, process = self.ready()
        try:
            with self._watching(process, request.deadline):
                pipe.send(replace(request, deadline=None))
                result: Answer = pipe.recv()
                return result
        except (EOFError, OSError):
            process.join(WAIT)
            why = f"ended in the middle of its work (exit code {process.exitcode})"
            self.close()
            raise WorkerLost(f"worker slot {self.number} {self._hangs or why}") from None

    @contextlib.contextmanager
    def _watching(self, process: Any, deadline: Deadline | None) -> Iterator[None]:
        """Let `look` end the process where it hangs, until the end of this."""
        with self._lock:
            self._watched = None if deadline is None else (process, deadline, ProcessClock(process.pid))
            self._hangs = None
        try:
            yield
        finally:
            with self._lock:
                self._watched = None

    def look(self) -> None:
        """End the process where it hangs; whoever waits for its answer is told."""
        with self._lock:
            if self._watched is None or self._hangs:
                return
            process, deadline, clock = self._watched
            clock.look()
            why = deadline.reason(clock.spent, clock.idle)
            if why:
                self._hangs = f"was ended at {why}"
                process.kill()

    def ready(self) -> tuple[Connection, Any]:
        """The pipe to the process, and the process, which is started where none is running.

        Raises:
            WorkerLost: this was ended meanwhile.
        """
        with self._lock:
            if self._hangs:  # it was ended in the moment in which it answered
                self.close()
            if self.process is None or self.pipe is None or not self.process.is_alive():
                context = warm()
                pipe, inner = context.Pipe()
                name = f"{WORKER} {self.number}"
                process = context.Process(target=serve, args=(inner, self.device), daemon=True, name=name)
                with without_main():
                    process.start()
                inner.close()
                # Not before: the slots may be closed meanwhile, and what was not started cannot be ended.
                self.pipe, self.process = pipe, process
                self._hangs = None
                if self._ended:  # while it was started: nobody else ends it any more
                    self.close()
            if self.process is None or self.pipe is None:
                raise WorkerLost("the worker slots are closed")
            return self.pipe, self.process

    def end(self) -> None:
        """Close for good, also where the process is only just being started."""
        self._ended = True
        self.close()

    def close(self) -> None:
        """End the process, also one that is stopped: of what it has begun nothing is needed."""
        process, pipe = self.process, self.pipe
        self.process = self.pipe = None
        if process is not None:
            process.kill()
            process.join(WAIT)
            if process.is_alive():  # it is not: who should tell so is stopped, the process that it was forked from
                cool()
                process.join(WAIT)
        if pipe is not None:
            pipe.close()


def serve(pipe: Connection, device: str) -> None:
    """A worker process: answer requests until the pipe closes (which it also does when the parent is killed)."""
    # Ctrl-C goes to the whole process group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(dict.fromkeys(THREADS, "1"))
    import torch

    from shoal.engine.settings.hardware import keep_freed_memory
    from shoal.engine.workers.worker import Worker

    torch.set_num_threads(1)
    keep_freed_memory()
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    worker = Worker(device)
    while True:
        try:
            request = pipe.recv()
        except (EOFError, OSError):
            return
        answer = worker.handle(request)
        try:
            pipe.send(answer)
        except OSError:
            return


class WorkerProcesses:
    """The slots of this machine; `call` may be used from many threads at once.

    Args:
        count: number of slots.
        device: cpu or cuda; slots share the GPUs in turn.
    """

    def __init__(self, count: int, device: str = "cpu") -> None:
        self.count = self.most = count
        self.processes = [WorkerProcess(i, device if device == "cpu" else _gpu(i)) for i in range(count)]
        self._idle: queue.LifoQueue[WorkerProcess] = queue.LifoQueue()
        for slot in reversed(self.processes):
            self._idle.put(slot)
        self._closed = threading.Event()
        threading.Thread(target=self._look, daemon=True, name="shoal deadlines").start()
        # While the caller prepares its run, the workers start.
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

    def _look(self) -> None:
        while not self._closed.wait(POLL_SECONDS):
            for slot in self.processes:
                slot.look()

    def call(self, request: Request) -> Answer:
        """Have an idle slot do the request; wait for one if all are busy.

        Raises:
            WorkerLost: its process ended, or was ended because it hangs; or the slots were closed.
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
        self._starting.join(WAIT)
        if self._starting.is_alive():
            cool()
        for slot in self.processes:
            slot.end()

    def __enter__(self) -> WorkerProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _gpu(number: int) -> str:
    import torch

    return f"cuda:{number % torch.cuda.device_count()}"
