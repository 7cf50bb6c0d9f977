"""The GPU of a worker process of a cluster: the processes of one host share its GPUs in turn.

A cluster starts workers as it likes and does not tell them how many there are. So each process takes the first free
place of its host, by a lock on a file that it keeps as long as it lives. Processes that see other GPUs (dask-cuda sets
CUDA_VISIBLE_DEVICES for each) have places of their own.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
from pathlib import Path
from typing import IO

import torch

from shoal.core.durable import private_folder
from shoal.engine.store.shared_temp import own_folder

VISIBLE = "CUDA_VISIBLE_DEVICES"
MAX_PLACES = 4096
"""Most processes of one host that get places of their own."""

_lock = threading.Lock()
_taken: dict[tuple[int, str], tuple[int, IO[str] | None]] = {}
"""By process and by the GPUs that it sees: its place, and the locked file of the place."""


def own_device(device: str) -> str:
    """Return where this process computes: for cuda, the GPU whose turn it is.

    Args:
        device: cpu or cuda, as resolved.
    """
    if device != "cuda" or not torch.cuda.device_count():
        return device
    return f"cuda:{own_place() % torch.cuda.device_count()}"


def own_place() -> int:
    """Return the place of this process among those of its host, from 0; the process keeps it to its end."""
    visible = os.environ.get(VISIBLE, "")
    key = (os.getpid(), visible)
    with _lock:
        if key not in _taken:
            _taken[key] = _take(hashlib.sha256(visible.encode()).hexdigest()[:12])
        return _taken[key][0]


def lock_folder() -> Path:
    """Return the folder of the locks, on a disk of this host."""
    return own_folder("shoal-workers")


def _take(name: str) -> tuple[int, IO[str] | None]:
    """Take the first free place in a folder of locks; return it with its locked file."""
    try:
        folder = lock_folder() / name
        private_folder(folder)
        for place in range(MAX_PLACES):
            file = (folder / str(place)).open("a")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return place, file
            except BlockingIOError:
                file.close()
    except OSError:
        pass  # no file can be locked here: all processes compute on the first GPU
    return 0, None
