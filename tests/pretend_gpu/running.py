"""Runs of small settings whose worker computes on the pretend GPU; the server is on the CPU, as it always is."""

from __future__ import annotations

import threading
from typing import Any

from shoal.engine.messages.wire import Answer, Request, Train
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.workers.worker import Worker
from tests.pretend_gpu.device import DEVICE, pretending
from tests.pretend_gpu.ledger import Ledger
from tests.runs import straight


class PretendWorker(Worker):
    """A worker on the pretend GPU, in whatever thread it is called.

    Args:
        trains_only: all but training is done on the CPU.

    Attributes:
        training: what training alone asked of the device.
        last: what the last request asked of it.
    """

    def __init__(self, *, trains_only: bool = False) -> None:
        super().__init__(DEVICE)
        self.training, self.last = Ledger(), Ledger()
        self._other = Worker() if trains_only else None
        self._turn = threading.Lock()  # a worker does one request after the other

    def handle(self, request: Request) -> Answer:
        """As of `Worker`."""
        with self._turn:
            if self._other is not None and not isinstance(request, Train):
                return self._other.handle(request)
            with pretending() as ledger:
                answer = super().handle(request)
            self.last = ledger
            if isinstance(request, Train):
                self.training.operations += ledger.operations
                self.training.launches += ledger.launches
                self.training.precisions += ledger.precisions
                self.training.waits += ledger.waits
            return answer


def run_there(settings: Any, *, trains_only: bool = False) -> tuple[RunFolder, PretendWorker]:
    """A run to its end whose worker is on the pretend GPU, and the worker."""
    worker = PretendWorker(trains_only=trains_only)
    return straight(settings, worker.handle), worker
