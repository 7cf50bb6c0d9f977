"""What this machine offers a run: devices, precision, worker slots."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import shutil
from pathlib import Path
from typing import Any

import torch

from shoal.engine.settings.run_settings import Settings, SettingsError
from shoal.engine.settings.sections import WorkersSection


def resolve_device(workers: WorkersSection) -> str:
    """The device kind of a run. A running cluster may have the GPUs that this machine has not.

    Raises:
        SettingsError: a GPU is wanted and there is none.
    """
    wanted, here = workers.device, torch.cuda.is_available()
    if wanted == "cuda" and not here and not workers.elsewhere:
        raise SettingsError(
            "workers.device: cuda was asked for, and torch sees no GPU here; use auto or cpu, or give workers.address "
            "of a cluster that has GPUs"
        )
    return ("cuda" if here else "cpu") if wanted == "auto" else wanted


def device_here(began: str) -> str:
    """Where this machine judges a state of a run that began on a device of this kind: there, else on the CPU."""
    return began if began == "cpu" or torch.cuda.is_available() else "cpu"


def resolve_precision(wanted: str, device: str) -> str:
    """fp32, tf32 or bf16: `auto` is bf16 where a GPU here computes in it, and fp32 elsewhere.

    Raises:
        SettingsError: TF32 is wanted on a CPU.
    """
    if wanted == "tf32" and device == "cpu":
        raise SettingsError("workers.precision: tf32 is of GPUs, and this run computes on the CPU; use auto or fp32")
    if wanted != "auto":
        return wanted
    return "bf16" if device == "cuda" and torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "fp32"


MAX_SLOTS_PER_GPU = 5
"""With so many processes one GPU is busy; measured on an H100 (docs/performance.md)."""
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
        SettingsError: less than one; or the device is the GPU that a run began on, and this machine has none.
    """
    if device == "cuda" and not torch.cuda.device_count():
        raise SettingsError(
            "workers.device: the run began on a GPU (cuda), and torch sees no GPU here; resume it on a machine that "
            "has one, or start a new run with workers.device=cpu"
        )
    if wanted == "auto":
        if device == "cuda":
            return torch.cuda.device_count() * slots_per_gpu()
        return len(os.sched_getaffinity(0))
    if int(wanted) < 1:
        raise SettingsError(f"workers.slots is {wanted}: set it to 1 or more, or to auto")
    return int(wanted)


def expected_slots(workers: WorkersSection, device: str) -> int:
    """Slots of a run before its workers are there; of a running cluster of unknown size as many as this machine has.

    Raises:
        SettingsError: as `resolve_slots`, where this machine is to have them.
    """
    if workers.elsewhere and device == "cuda" and not torch.cuda.device_count():
        return 1 if workers.slots == "auto" else int(workers.slots)
    return resolve_slots(workers.slots, device)


def check_compiler(wanted: str) -> None:
    """What `workers.compile` generates is C++ (on a GPU with a launcher in C).

    Raises:
        SettingsError: it is wanted, and no compiler is found.
    """
    names = [os.environ.get("CXX") or "g++", "clang++"]
    if wanted != "off" and not any(map(shutil.which, names)):
        raise SettingsError(
            f"workers.compile: {wanted} needs a C++ compiler, and neither {names[0]} nor {names[1]} is on the PATH: "
            "install one, or set workers.compile to off"
        )


def resolve(settings: Settings) -> dict[str, Any]:
    """Device and precision as they are kept with the run, so that a resumed run computes as it began.

    Raises:
        SettingsError: the machine has not what the settings ask for.
    """
    device = resolve_device(settings.workers)
    check_compiler(settings.workers.compile)
    return {"device": device, "precision": resolve_precision(settings.workers.precision, device)}


def one_arena() -> None:
    """Have the C library (glibc) give this process's threads their memory from where the first thread has its own.

    Threads else have arenas, of pieces of 64 MB, each of which goes back to the kernel as soon as it is empty, whatever
    `keep_freed_memory` asked for. To be called before there are many threads; elsewhere than on glibc nothing is done.
    """
    arena_max = -8  # malloc.h
    _mallopt(arena_max, 1)


def keep_freed_memory() -> None:
    """Have the C library (glibc) keep what a training step frees for the next step.

    By default it hands large blocks back to the kernel, which clears every page of them when they are asked for again:
    thousands of page faults a step, an eighth of its time and more. Elsewhere than on glibc nothing is done.
    """
    trim_threshold, mmap_threshold = -1, -3  # malloc.h
    for what in (trim_threshold, mmap_threshold):
        _mallopt(what, 1 << 30)


def _mallopt(what: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).mallopt(what, value)


def memory(limit: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Bytes of memory that this process can have at most: the machine's, or what its container may take of it.

    Args:
        limit: file of the control group; without one (other systems), or without a number in it, all is the machine's.
    """
    try:
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on every system
        found = 4 << 30
    with contextlib.suppress(OSError, ValueError):
        found = min(found, int(limit.read_text()))
    return found


def describe() -> dict[str, Any]:
    """The machine at hand, for lineage and reports."""
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "cores": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "gpus": gpus,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
