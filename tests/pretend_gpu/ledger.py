"""What a pretend GPU was asked to do: operations, and the waits of the host for it, each with the line that asked."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import torch

ROOT = str(Path(__file__).parents[2]) + "/"
TESTS = str(Path(__file__).parent) + "/"


class Ledger:
    """Counts of one device.

    Attributes:
        operations: how many were carried out, views and allocations included.
        launches: kernels that a GPU would launch for them, by the line of the project that asked: one an operation
            that computes or copies, with one for all tensors of a list.
        precisions: how many of them gave tensors of a dtype.
        waits: of the host for the device, by kind and by the line of the project that asked.
    """

    def __init__(self) -> None:
        self.operations = 0
        self.launches: Counter[str] = Counter()
        self.precisions: Counter[torch.dtype] = Counter()
        self.waits: Counter[tuple[str, str]] = Counter()

    def clear(self) -> None:
        """Forget everything."""
        self.operations = 0
        self.launches.clear()
        self.precisions.clear()
        self.waits.clear()

    def launch(self) -> None:
        """Note a kernel that the calling line has launched."""
        self.launches[asking_line()] += 1

    def wait(self, kind: str) -> None:
        """Note a wait that the calling line makes the host do."""
        self.waits[kind, asking_line()] += 1

    def kinds(self) -> Counter[str]:
        """Waits by kind alone."""
        found: Counter[str] = Counter()
        for (kind, _), count in self.waits.items():
            found[kind] += count
        return found


def asking_line() -> str:
    """The innermost line of the project that is carried out, with its function; these files are passed over."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        # A test of the device may ask as well.
        own = name.startswith(TESTS) and not name.startswith(TESTS + "test_")
        if name.startswith(ROOT) and not own and "/site-packages/" not in name:
            return f"{name[len(ROOT) :]}:{frame.f_lineno} {frame.f_code.co_qualname}"
        frame = frame.f_back  # type: ignore[assignment]
    return "?"
