"""The work that a worker of a Dask cluster does."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from shoal.engine.messages.wire import Answer, Failure, Request
from shoal.engine.settings.hardware import keep_freed_memory
from shoal.engine.workers.worker import Worker

_here = threading.local()
"""The workers of each thread, by device: a Dask worker may have several threads, and two runs may share a cluster."""


def work(request: Request, device: str, progress: Callable[[], None] = lambda: None) -> Answer:
    """Do a request in this process of a cluster; the run of the last request stays open.

    Args:
        request: the request.
        device: cpu or cuda, which is the first GPU that this process sees (CUDA_VISIBLE_DEVICES).
        progress: called after each client and each step of an optimiser.
    """
    torch.set_num_threads(1)  # of this Dask thread too, for the same bits on every worker
    host = os.uname().nodename
    if device == "cuda" and not torch.cuda.is_available():
        return Failure(
            f"worker {host}: the run computes on a GPU (cuda), and torch sees none there: start workers only on hosts "
            "that have one",
        )
    if not request.run.is_dir():
        return Failure(
            f"worker {host} does not see {request.run}: runs and data must lie on a file system that all workers "
            "share, under the same path: set SHOAL_HOME to it",
        )
    _here.progress = progress
    workers: dict[str, Worker] = _here.__dict__.setdefault("workers", {})
    if device not in workers:
        keep_freed_memory()
        workers[device] = Worker("cuda:0" if device == "cuda" else device, report_progress)
        _watch_optimisers()
    return workers[device].handle(request)


def report_progress(*_: object) -> None:
    """Call the function to which the request of this thread reports progress, if it does a request."""
    getattr(_here, "progress", lambda: None)()


@functools.cache
def _watch_optimisers() -> None:
    register_optimizer_step_post_hook(report_progress)
