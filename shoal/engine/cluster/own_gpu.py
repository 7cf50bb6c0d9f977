"""The GPU of a worker process of a cluster: those of one host share its GPUs in turn.

A cluster may start workers as it likes, and tells none of them how many others there are. So each takes the first place
of its host that is free, by a lock on a file that lasts as long as the process. Processes that see other GPUs
(dask-cuda sets CUDA_VISIBLE_DEVICES for each) have places of their own.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
from pathlib import Path
from typing import IO

import torch

from shoal.engine.store.codec import private_folder
from shoal.engine.store.shared_temp import own_folder

VISIBLE = "CUDA_VISIBLE_DEVICES"
MOST = 4096

_lock = threading.Lock()
_taken: dict[tuple[int, str], tuple[int, IO[str] | None]] = {}
"""By process and by what GPUs it sees: its place, and the file that is locked for it."""


def own_device(device: str) -> str:
    """Where this process computes: of `cuda`, the GPU that is its turn.

    Args:
        device: cpu or cuda, as resolved.
    """
    gpus = torch.cuda.device_count() if device == "cuda" else 0
    return f"cuda:{own_place() % gpus}" if gpus else device


def own_place() -> int:
    """Which of the processes of this host this one is, from 0; the same as long as it lives."""
    visible = os.environ.get(VISIBLE, "")
    key = os.getpid(), visible
    with _lock:
        if key not in _taken:
            _taken[key] = _take(hashlib.sha256(visible.encode()).hexdigest()[:12])
        return _taken[key][0]


def places() -> Path:
    """The folder of the locks, on a disk of this host."""
    return own_folder("shoal-workers")


def _take(name: str) -> tuple[int, IO[str] | None]:
    try:
        folder = places() / name
        private_folder(folder)
        for place in range(MOST):
            file = (folder / str(place)).open("a")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return place, file
            except BlockingIOError:
                file.close()
    except OSError:
        pass  # nothing can be locked here: all compute on the first GPU
    return 0, None
