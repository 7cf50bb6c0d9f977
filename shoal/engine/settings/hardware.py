"""The hardware of this machine: devices, precision, worker slots, memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import sys

import torch

from shoal.engine.settings.machine import Machine, RunHardware
from shoal.engine.settings.run_settings import Settings, SettingsError
from shoal.engine.settings.sections import WorkersSection


def resolve_device(workers: WorkersSection) -> str:
    """Return the device of a run: cpu or cuda. A running cluster may have GPUs even if this machine has none.

    Raises:
        SettingsError: the settings ask for a GPU, and there is none.
    """
    if workers.device == "cpu":
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    if workers.device == "auto":
        return "cpu"
    if not workers.elsewhere:
        raise SettingsError(
            "workers.device is cuda, and torch sees no GPU here: set it to auto or cpu, or set workers.address to a "
            "cluster that has GPUs"
        )
    return "cuda"


def device_here(device: str) -> str:
    """Return where this machine evaluates a state of a run with this device: cuda if both have a GPU, else cpu."""
    if not torch.cuda.is_available():
        return "cpu"
    return device


def resolve_precision(wanted: str, device: str) -> str:
    """Return fp32, tf32 or bf16; auto: bf16 if a GPU of this machine computes in it, else fp32.

    Raises:
        SettingsError: the settings ask for TF32 on a CPU.
    """
    if wanted == "tf32" and device == "cpu":
        raise SettingsError(
            "workers.precision is tf32, which only GPUs have, and this run computes on the CPU: set it to auto or fp32"
        )
    if wanted != "auto":
        return wanted
    if device == "cuda" and torch.cuda.is_available() and torch.cuda.is_bf16_supported():
        return "bf16"
    return "fp32"


CPU_TIMEOUT_MINUTES = 30.0
"""`workers.timeout` on CPUs, if it is auto."""
MAX_SLOTS_PER_GPU = 5
"""Number of processes that keep a GPU busy; measured on an H100 (research/docs/performance.md)."""
SLOT_BYTES = 4 << 30
"""Free memory of a GPU for each worker process: its context, and what ResNet-18 needs on batches of 128."""


def slots_per_gpu() -> int:
    """Return how many worker processes share one GPU: as many as its free memory and the CPU cores allow."""
    try:
        free, _ = torch.cuda.mem_get_info()
    except (RuntimeError, AssertionError):  # there is no GPU here, or its driver does not answer
        return 1
    cores = len(os.sched_getaffinity(0)) // max(1, torch.cuda.device_count())
    return max(1, min(MAX_SLOTS_PER_GPU, cores, free // SLOT_BYTES))


def resolve_slots(wanted: int | str, device: str) -> int:
    """Return the worker slots on this machine; auto: several for each GPU, or one for each core of this process.

    Raises:
        SettingsError: the device is the GPU that a run began on, and this machine has none.
    """
    if device == "cuda" and not torch.cuda.device_count():
        raise SettingsError(
            "workers.device: the run began on a GPU (cuda), and torch sees no GPU here: resume it on a machine that "
            "has one, or start a new run with workers.device=cpu"
        )
    if wanted == "auto":
        if device == "cuda":
            return torch.cuda.device_count() * slots_per_gpu()
        return len(os.sched_getaffinity(0))
    return int(wanted)


def resolve_timeout(workers: WorkersSection, device: str) -> float | None:
    """Return the minutes of `workers.timeout`; auto: 30 on CPUs, and on GPUs None, which is no limit."""
    if workers.timeout == "auto":
        return None if device == "cuda" else CPU_TIMEOUT_MINUTES
    return workers.timeout


def resolve_machine(settings: Settings) -> RunHardware:
    """Return device and precision, which are stored with the run, so that a resumed run computes as before.

    Raises:
        SettingsError: this machine lacks what the settings ask for.
    """
    device = resolve_device(settings.workers)
    return RunHardware(device, resolve_precision(settings.workers.precision, device))


def one_arena() -> None:
    """Have the C library (glibc) give all threads of this process memory from the arena of the first.

    By default threads have arenas of their own, whose pieces of 64 MB return to the kernel as soon as they are empty,
    even after `keep_freed_memory`. Call this before there are many threads; other C libraries are left as they are.
    """
    arena_max = -8  # malloc.h
    _mallopt(arena_max, 1)


def keep_freed_memory() -> None:
    """Have the C library (glibc) keep memory that a training step frees for the next step.

    By default large blocks return to the kernel, which clears each of their pages when they are allocated again:
    thousands of page faults a step, an eighth of its time or more. Other C libraries are left as they are.
    """
    trim_threshold = -1  # malloc.h
    mmap_threshold = -3
    _mallopt(trim_threshold, (1 << 31) - 1)  # above a round's messages, which `MAX_EARLY_BYTES` bounds
    _mallopt(mmap_threshold, 1 << 30)


def release_freed_memory() -> None:
    """Have the C library (glibc) return freed memory to the kernel once, also what `keep_freed_memory` keeps.

    Call this before a step that needs memory of another kind than the steps before. Other C libraries are left as they
    are. Arrow, if it is loaded, has a pool of its own, which is emptied too.
    """
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def _mallopt(parameter: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).mallopt(parameter, value)


def describe() -> Machine:
    """Return a description of this machine, for lineage and reports."""
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        machine=platform.machine(),
        system=f"{platform.system()} {platform.release()}",
        gpus=tuple(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())),
        python=platform.python_version(),
        torch=str(torch.__version__),
    )
