"""Runs of a study side by side, in processes of their own: for a GPU that one small run leaves idle.

Each process takes the next run that nobody has taken, and keeps its workers and their captured steps from run to run.
A run is the same in every process, and one that is cut short is resumed as ever.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import signal
import sys
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any

from shoal.engine.store.run_folder import RunFolder
from shoal.sweeps.sweep import RunFailed, open_sweep


def complete_side_by_side(runs: Sequence[tuple[str, RunFolder]], processes: int) -> None:
    """Do what is still to do of some runs; what a process could not do is left undone.

    Args:
        runs: each with a label for its progress.
        processes: how many there are at once.
    """
    # Fresh processes: torch's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    waiting = context.Queue()
    for number, (label, run) in enumerate(runs, 1):
        waiting.put((f"[{number}/{len(runs)}] {label}", str(run.path)))
    started: list[BaseProcess] = []
    try:
        for _ in range(min(processes, len(runs))):
            new = context.Process(target=complete_waiting, args=(waiting,))
            new.start()
            started.append(new)
        for process in started:
            process.join()
    except KeyboardInterrupt:
        for process in started:
            process.terminate()  # a terminal interrupts all of them, but `kill` this process alone
        raise
    finally:  # after an interrupt nobody takes another run
        while take(waiting, seconds=0.1) is not None:
            pass
        for process in started:
            process.join()


def complete_waiting(waiting: Any) -> None:
    """Complete runs from a queue of labels and folders until it is empty, or until this process is interrupted."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt_once)
    with contextlib.suppress(KeyboardInterrupt):
        complete_all(waiting)


def interrupt_once(_number: int, _frame: FrameType | None) -> None:
    """Interrupt the run in hand; a second signal does not disturb its end."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def complete_all(waiting: Any) -> None:
    """Complete runs from a queue with the same workers.

    Raises:
        KeyboardInterrupt: the run in hand can be resumed.
    """
    taken = take(waiting)
    if taken is None:
        return
    with open_sweep(RunFolder(Path(taken[1])).settings()) as sweep:
        while taken is not None:
            label, folder = taken
            ended = "done"
            try:
                sweep.complete(RunFolder(Path(folder)), label)
            except RunFailed:
                ended = "failed"
            print(f"{label}: {ended}", file=sys.stderr, flush=True)  # standard output may be for JSON alone
            taken = take(waiting)


def take(waiting: Any, seconds: float = 1.0) -> tuple[str, str] | None:
    """Return the next label and folder of a queue; None where it stays empty for some seconds."""
    try:
        found: tuple[str, str] = waiting.get(timeout=seconds)
    except queue.Empty:
        return None
    return found
