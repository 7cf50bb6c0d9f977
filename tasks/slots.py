"""Worker slots: persistent processes on this machine, one thread each (or one GPU each), fed over pipes.

Any number of slots gives the same bits: a client's work runs on one thread, from files, with its own random streams.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from data.errors import ShoalError


class SlotLost(ShoalError):
    """A worker process ended in the middle of its work."""


@dataclass
class Slot:
    """One worker process; started when it is first needed, and again after it was lost."""

    number: int
    device: str
    process: Any = None
    pipe: Connection | None = None

    def call(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request and wait for the answer.

        Raises:
            SlotLost: the process ended without an answer.
        """
        if self.process is None or not self.process.is_alive():
            self.start()
        assert self.pipe is not None
        try:
            self.pipe.send(request)
            return self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(5)
            code = self.process.exitcode
            self.close()
            raise SlotLost(f"worker slot {self.number} ended in the middle of its work (exit code {code})") from None

    def start(self) -> None:
        """Start the process."""
        context = multiprocessing.get_context("spawn")
        self.pipe, inner = context.Pipe()
        self.process = context.Process(target=serve, args=(inner, self.device), daemon=True)
        self.process.start()
        inner.close()

    def close(self) -> None:
        """End the process."""
        if self.pipe is not None:
            self.pipe.close()
        if self.process is not None:
            self.process.terminate()
            self.process.join(5)
        self.process = self.pipe = None


def serve(pipe: Connection, device: str) -> None:
    """A worker process: answer requests until the pipe closes (which it also does when the parent is killed)."""
    # Ctrl-C goes to the whole process group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    import torch

    from tasks.work import Worker

    torch.set_num_threads(1)
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


class Slots:
    """The slots of this machine; `call` may be used from many threads at once.

    Args:
        count: number of slots.
        device: cpu or cuda; slots share the GPUs in turn.
    """

    def __init__(self, count: int, device: str = "cpu") -> None:
        self.count = count
        self.slots = [Slot(i, device if device == "cpu" else _gpu(i)) for i in range(count)]
        self._idle: queue.LifoQueue[Slot] = queue.LifoQueue()
        for slot in reversed(self.slots):
            self._idle.put(slot)
        self._closed = threading.Event()

    def call(self, request: dict[str, Any]) -> dict[str, Any]:
        """Have an idle slot do the request; wait for one if all are busy.

        Raises:
            SlotLost: its process ended, or the slots were closed.
        """
        slot = self._idle.get()
        try:
            if self._closed.is_set():
                raise SlotLost("the worker slots are closed")
            return slot.call(request)
        finally:
            self._idle.put(slot)

    def close(self) -> None:
        """End all processes."""
        self._closed.set()
        for slot in self.slots:
            slot.close()

    def __enter__(self) -> Slots:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _gpu(number: int) -> str:
    import torch

    return f"cuda:{number % torch.cuda.device_count()}"
