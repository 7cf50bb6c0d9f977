"""What needs a GPU, in order of worth, in slices of minutes: each call goes on where the one before stopped.

    python -m shoal_research.benchmarks.gpu_day --minutes 9

First whether the device computes rightly and how near to its kernels it is kept (`benchmarks.gpu_probe`); then whole
tables with small networks, whose runs share the GPU (in minutes with NVIDIA's multi-process service, which
`nvidia-cuda-mps-control -d` starts); then how long FedPNP's paper run takes, and the cells of the papers' tables at the
papers' scale on which most claims wait: one seed of each, further speeds, then the other seeds.
No part gets more than three minutes of a call. What is finished is kept for the page of claims
(shoal_research/results); the rest stands at the end, and in results/gpu-day/state.json. A study is stopped as
Ctrl-C does it, so that no work of a client is done twice. To try the day itself out, cut it down; its results are then
kept in its own folder:

    python -m shoal_research.benchmarks.gpu_day --out trial --shrink 50 --set data.name=digits
    --set model.encoder=tiny-conv
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from shoal.engine.store.codec import write_atomic
from shoal_research.benchmarks.device import CASES

PART_SECONDS = 180.0
"""A part is stopped after so many seconds of a call: it goes on in the next one."""
GRACE = 40.0
"""Seconds in which what is stopped must have ended."""
LEAST = 20.0
"""A part is not begun with fewer seconds left."""
AT_ONCE = max(1, min(14, (os.cpu_count() or 1) - 2))
"""Runs of small networks side by side: with one at a time the GPU waits for the host."""
ROOT = Path(__file__).resolve().parents[3]
DONE, STOPPED, FAILED = "done", "stopped", "failed"


@dataclass(frozen=True)
class Part:
    """Something to do, by a command that goes on where it was stopped, or is short.

    Args:
        name: of the part; its output is in NAME.log.
        why: what it is for, in one line.
        command: what is called.
        keep: what is called once it is done.
    """

    name: str
    why: str
    command: tuple[str, ...]
    keep: tuple[str, ...] = ()


@dataclass
class Progress:
    """How far a part is.

    Attributes:
        state: empty before it was begun, then done, stopped (to go on with) or failed (to be tried again).
        seconds: that it took so far, in all calls.
        calls: in which it was at work.
    """

    state: str = ""
    seconds: float = 0.0
    calls: int = 0


@dataclass(frozen=True)
class Trial:
    """How a day is cut down, to try it out.

    Args:
        shrink: by how much the work of a measurement of speed is divided; with it it is measured once.
        changed: settings laid over every run of a study, each `path=value`.
    """

    shrink: int = 1
    changed: tuple[str, ...] = ()


def study(why: str, name: str, scale: str, options: Sequence[str], end: str, trial: Trial | None = None) -> Part:
    """Some cells of a study.

    Args:
        why: what they are for, in one line.
        name, scale: of the study.
        options: of `shoal study`: which cells, and how many at once.
        end: of the name of the part, after that of the study.
        trial: how the day is cut down.
    """
    shoal = (sys.executable, "-m", "shoal.cli.main")
    command = (*shoal, "study", name, "--scale", scale, *options)
    keep: tuple[str, ...] = (*shoal, "claims", "--keep", name, "--scale", scale)
    if trial is not None:
        command += tuple(word for change in trial.changed for word in ("--set", change))
        keep = ()  # no trial is taken for a measurement
    return Part(f"{name}-{end}", why, command, keep)


def parts(device: str, trial: Trial | None = None) -> list[Part]:
    """All of it, what is worth most first.

    Args:
        device: whose speed is measured.
        trial: how it is cut down; None: it is not.
    """
    bench = (sys.executable, "-m", "shoal_research.benchmarks.device", "--device", device)
    probe = (sys.executable, "-m", "shoal_research.benchmarks.gpu_probe", "--device", device)
    if trial is not None:
        bench += ("--shrink", str(trial.shrink), "--repeats", "1")
        probe += ("--shrink", str(trial.shrink))
    found = [Part("probe", "right on this GPU, and near its kernels", probe)]
    speed = [
        Part(f"device-{number}", f"speed: {case.name}", (*bench, "--cases", str(number)))
        for number, case in enumerate(CASES)
    ]
    together = ("--again", "--processes", str(AT_ONCE), "--set", "workers.slots=1")
    small = [
        study("SSD, its parts and its peers on CIFAR-10, small network", "ssd-table", "cpu", together, "cpu", trial),
        study("FedPNP and its baselines on MNIST, small network", "fedpnp-table1", "large", together, "large", trial),
    ]
    cells = (
        ("FedPNP above FedCC, CIFAR-10 dealt evenly", "fedpnp-table1", ["fedcc", "fedpnp"], ["iid"]),
        ("SSD above FedAlignUniform, silo", "ssd-table", ["fedalignuniform", "ssd"], ["silo"]),
        ("CF-CL above uniform pull", "cfcl-convergence", ["uniform", "cfcl"], []),
    )
    studies = [
        [
            study(why, name, "paper", chosen(seeds, rows, columns), str(seeds), trial)
            for why, name, rows, columns in cells
        ]
        for seeds in (1, 3)
    ]
    # A first seed of every cell says more than how fast the GPU is; further seeds say less.
    return [*found, *small, speed[-1], *studies[0], *speed[:-1], *studies[1]]


def chosen(seeds: int, rows: Sequence[str], columns: Sequence[str]) -> tuple[str, ...]:
    """Return options of `shoal study` that choose cells."""
    named = [word for row in rows for word in ("--row", row)] + [word for c in columns for word in ("--column", c)]
    return ("--seeds", str(seeds), *named)


def heed_interrupts() -> None:
    """What a shell begins in the background ignores SIGINT, and so would all that it begins."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass
class Day:
    """The parts and how far they are.

    Args:
        parts: in order.
        out: folder of state and logs.
    """

    parts: Sequence[Part]
    out: Path
    progress: dict[str, Progress] = field(init=False)

    def __post_init__(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        known = {}
        with contextlib.suppress(FileNotFoundError):
            known = json.loads((self.out / "state.json").read_text())
        self.progress = {part.name: Progress(**known.get(part.name, {})) for part in self.parts}

    @property
    def left(self) -> list[Part]:
        """What is still to do."""
        return [part for part in self.parts if self.progress[part.name].state != DONE]

    def go_on(self, minutes: float) -> None:
        """Work for so many minutes; a part that fails is passed over, and tried again by the next call."""
        end = time.monotonic() + 60 * minutes
        for part in self.left:
            left = end - time.monotonic()
            if left < LEAST + GRACE:
                return
            began, progress = time.monotonic(), self.progress[part.name]
            print(f"{part.name}: {part.why}", flush=True)
            state = self.execute(part.command, part.name, min(PART_SECONDS, left - GRACE))
            if state == DONE and part.keep:
                state = self.execute(part.keep, part.name, LEAST + GRACE)
            progress.state, progress.calls = state, progress.calls + 1
            progress.seconds += time.monotonic() - began
            self.write()

    def execute(self, command: Sequence[str], name: str, seconds: float) -> str:
        """Call a command, and stop it when its time is over; what came of it."""
        with (self.out / f"{name}.log").open("a") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True, preexec_fn=heed_interrupts
            )
            try:
                code = process.wait(seconds)
                return DONE if code == 0 else FAILED
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE / 2)
                return STOPPED
            finally:
                with contextlib.suppress(ProcessLookupError):  # and what it began
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def write(self) -> None:
        """Remember how far the parts are."""
        state = {name: asdict(progress) for name, progress in self.progress.items()}
        write_atomic(self.out / "state.json", (json.dumps(state, indent=1) + "\n").encode())

    def table(self) -> str:
        """How far the parts are, for people."""
        lines = ["| part | what for | state | minutes | calls |", "|---|---|---|---:|---:|"]
        for part in self.parts:
            at = self.progress[part.name]
            state = at.state or "to do"
            lines.append(f"| {part.name} | {part.why} | {state} | {at.seconds / 60:.1f} | {at.calls} |")
        return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Go on with the day; exit code 1 while anything is left.

    Args:
        arguments: of the command line; None: this process's.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.0, help="after which this call ends, all included")
    parser.add_argument("--device", default="cuda", help="whose speed is measured")
    parser.add_argument("--out", type=Path, default=Path("results/gpu-day"), help="folder of state and logs")
    parser.add_argument("--shrink", type=int, default=1, help="to try it out: divides what is measured for speed")
    parser.add_argument(
        "--set", action="append", default=[], dest="changed", help="to try it out: path=value, laid over all runs"
    )
    given = parser.parse_args(arguments)
    if given.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU here: nothing is begun that would take days on a CPU")
    out = given.out.resolve()
    trial = Trial(given.shrink, tuple(given.changed)) if given.shrink > 1 or given.changed else None
    day = Day(parts(given.device, trial), out)
    day.go_on(given.minutes)
    print(day.table())
    if day.left:
        print(f"{len(day.left)} of {len(day.parts)} parts are left: call this again")
        raise SystemExit(1)


if __name__ == "__main__":
    main()
