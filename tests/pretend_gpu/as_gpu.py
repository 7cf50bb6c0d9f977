"""A module of the project, carried out in a process whose GPU is the pretend device.

    SHOAL_PRETEND_NOTES=notes.jsonl python -m tests.pretend_gpu.as_gpu shoal.cli.main run ...

torch says that there is one CUDA device, and worker processes compute on the pretend one in its place. What it was
asked is noted, a line a request or a benchmark: its kind, operations, those that gave bf16, and waits.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import torch

import shoal.engine.workers.worker
from shoal.engine.messages.wire import Answer, Request
from shoal.engine.workers import worker_processes
from tests.pretend_gpu.as_gpu_names import NOTES, THIS
from tests.pretend_gpu.device import pretending
from tests.pretend_gpu.ledger import Ledger
from tests.pretend_gpu.running import PretendWorker


def note(kind: str, ledger: Ledger) -> None:
    """Add a line on what the device was asked."""
    line = {
        "kind": kind,
        "operations": ledger.operations,
        "bf16": ledger.precisions[torch.bfloat16],
        "waits": ledger.waits.total(),
    }
    with Path(os.environ[NOTES]).open("a") as file:
        file.write(json.dumps(line) + "\n")


class NotingWorker(PretendWorker):
    """A worker that was told of a CUDA device, and notes what the pretend one is asked."""

    def __init__(self, device: str, _progress: Callable[[], None]) -> None:
        if not device.startswith("cuda"):
            raise RuntimeError(f"a worker was to compute on {device}, where there is a GPU")
        super().__init__()

    def handle(self, request: Request) -> Answer:
        """As of `Worker`."""
        answer = super().handle(request)
        note(type(request).__name__, self.last)
        return answer


def install() -> None:
    """Have torch and the engine take the pretend device for a CUDA device, in this process and in its workers."""
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.is_bf16_supported = lambda including_emulation=True: True
    torch.cuda.get_device_name = lambda device=None: "pretend"
    torch.cuda.set_device = lambda device: None
    shoal.engine.workers.worker.Worker = NotingWorker  # type: ignore[misc,assignment]
    if THIS not in worker_processes.PRELOADED:  # of which workers are forked
        worker_processes.PRELOADED.append(THIS)


def main() -> None:
    """Carry out the module that the command line names, with the arguments that follow."""
    sys.argv = sys.argv[1:]
    module = sys.argv[0]
    if not module.startswith("shoal_research.benchmarks."):
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return
    with pretending() as ledger:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    note(module, ledger)


install()
if __name__ == "__main__":
    main()
