"""Time and memory of processes, and how busy the machine is with something else."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def tree() -> list[int]:
    """Process ids of this process and all its living descendants."""
    parent: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except (OSError, IndexError):
                continue
            parent[int(entry.name)] = int(fields[1])
    mine, grew = {os.getpid()}, True
    while grew:
        more = {pid for pid, above in parent.items() if above in mine} - mine
        grew, mine = bool(more), mine | more
    return sorted(mine)


def tree_cpu() -> float:
    """CPU seconds used so far by this process and its living descendants."""
    total = 0.0
    for pid in tree():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue
        total += (int(fields[11]) + int(fields[12])) / TICK
    return total


def tree_memory() -> int:
    """Bytes that this process and its descendants hold, shared pages shared out (PSS)."""
    total = 0
    for pid in tree():
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:"))
    return total


def machine_busy() -> float:
    """CPU seconds that the machine has worked since it started."""
    values = [int(v) for v in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(values) - values[3] - values[4]) / TICK


def wait_quiet(limit: float = 0.12, need: int = 2, give_up: float = 10.0) -> None:
    """Wait until the machine is idle for a moment, but no longer than `give_up` seconds."""
    began, quiet = time.time(), 0
    while quiet < need and time.time() - began < give_up:
        before = machine_busy()
        time.sleep(1)
        quiet = quiet + 1 if (machine_busy() - before) / (os.cpu_count() or 1) < limit else 0


class Peak:
    """The largest memory of the process tree while it is open, looked at every `every` seconds.

    Attributes:
        bytes: the memory.
        cpu: seconds that looking took, of this process.
    """

    def __init__(self, every: float = 0.5) -> None:
        self.bytes = 0
        self.cpu = 0.0
        self._every, self._end = every, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._end.wait(self._every):
            self.bytes = max(self.bytes, tree_memory())
            self.cpu = time.thread_time()

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self.bytes = max(self.bytes, tree_memory())


def seconds(work: Callable[[], Any], device: Any) -> float:
    """How long work on a torch device takes, to its end."""
    import torch  # here: other engines' environments measure without it

    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began
