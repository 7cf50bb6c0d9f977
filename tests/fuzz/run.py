"""Broken inputs for every reader: each must give a normal answer, or one sentence that names what is wrong.

python -m tests.fuzz.run --count 100000                 # what `make fuzz` runs
python -m tests.fuzz.run "--readers=settings YAML" --first 4711 --count 1       # one input again, with its traceback
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from shoal.core.errors import ShoalError
from tests.fuzz.mutations import mutated
from tests.fuzz.readers import READERS, Opened

LONGEST_LINE = 700
"""Characters of a line of an error, at most."""
PATIENCE = 60
"""Seconds after which an input hangs."""
MEMORY = 6 << 30
"""Bytes of address space that a reader's process may take beyond what it has."""


@dataclass
class Found:
    """What became of a reader's inputs."""

    reader: str
    inputs: int = 0
    errors: int = 0
    tracebacks: int = 0
    slowest: float = 0.0
    megabytes: float = 0.0
    first: dict[str, int] = field(default_factory=dict)
    """The number of the first input of each kind of traceback or unfit sentence."""


class Hangs(Exception):
    """An input took too long."""


def refused(error: BaseException) -> bool:
    """Whether an error is one that users are meant to read."""
    return isinstance(error, ShoalError) or type(error).__name__ == "InputError"


def unfit(error: BaseException, named: str) -> str | None:
    """Why an error's text is no sentence that helps; None where it is one."""
    text = str(error)
    if not text.strip():
        return "an empty error"
    if not re.search(named, text, re.MULTILINE):
        return "an error that names no file"
    if "Traceback" in text or max(map(len, text.splitlines())) > LONGEST_LINE:
        return "an error too long to read"
    if any(not c.isprintable() and c != "\n" for c in text):
        return "an error that cannot be printed"
    return None


def outcome_of(opened: Opened, data: bytes) -> tuple[bool, str | None]:
    """Whether one input was refused, and what is wrong with how; None where nothing is."""
    try:
        opened.read(data)
    except Exception as error:
        if refused(error):
            return True, unfit(error, opened.named)
        last = traceback.extract_tb(error.__traceback__)[-1]
        return True, f"{type(error).__name__} in {Path(last.filename).name}:{last.lineno}"
    return False, None


def input_of(opened: Opened, reader: str, seed: int, number: int) -> bytes:
    """Input `number` of a reader."""
    return mutated(opened.seeds, random.Random(f"{seed}/{reader}/{number}"), opened.structured)


def fuzz(reader: str, seed: int, first: int, count: int, at: int | None = None) -> Found:
    """Some inputs of a reader, in this process; the file descriptor `at` has the number of the input being read."""

    def hangs(*_: Any) -> None:
        raise Hangs

    signal.signal(signal.SIGALRM, hangs)
    found = Found(reader)
    with tempfile.TemporaryDirectory(prefix="shoal-fuzz-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opened = READERS[reader](Path(folder))
        for whole in opened.seeds:
            assert outcome_of(opened, whole)[1] is None, (reader, outcome_of(opened, whole))
        for number in range(first, first + count):
            if at is not None:
                os.pwrite(at, b"%20d" % number, 0)
            data = input_of(opened, reader, seed, number)
            began = time.perf_counter()
            signal.alarm(PATIENCE)
            error, wrong = outcome_of(opened, data)
            signal.alarm(0)
            found.slowest = max(found.slowest, time.perf_counter() - began)
            found.inputs += 1
            found.errors += error
            if wrong is not None:
                found.tracebacks += 1
                found.first.setdefault(wrong, number)
    found.megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found


def in_a_process(reader: str, seed: int, first: int, count: int) -> Found:
    """As `fuzz`, in a process of its own, whose memory and end are seen."""
    words = [f"--one={reader}", "--seed", str(seed), "--first", str(first), "--count", str(count)]
    with tempfile.TemporaryFile() as at:
        words.append(f"--at={at.fileno()}")
        done = subprocess.run(
            [sys.executable, "-m", "tests.fuzz.run", *words], capture_output=True, text=True, pass_fds=[at.fileno()]
        )
        reached = int(os.pread(at.fileno(), 20, 0) or first)
    if done.returncode or not done.stdout.strip():
        why = f"the process ended ({done.returncode}): {done.stderr.strip()[:600]}"
        return Found(reader, reached - first + 1, tracebacks=1, first={why: reached})
    return Found(**json.loads(done.stdout.splitlines()[-1]))


def table(results: Sequence[Found]) -> str:
    """The results as Markdown."""
    lines = ["| reader | inputs | errors | tracebacks | slowest, s | peak memory, MB |", "|---|--:|--:|--:|--:|--:|"]
    for each in results:
        numbers = f"{each.inputs:,} | {each.errors:,} | {each.tracebacks:,} | {each.slowest:.2f} | {each.megabytes:.0f}"
        lines.append(f"| {each.reader} | {numbers} |")
    sums = f"{sum(r.inputs for r in results):,} | {sum(r.errors for r in results):,}"
    lines.append(f"| all | {sums} | {sum(r.tracebacks for r in results):,} | | |")
    return "\n".join(lines)


def main() -> int:
    """The command line; the exit code is 1 where anything but sentences was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="inputs a reader")
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--readers", nargs="*", choices=list(READERS), default=list(READERS), metavar="READER")
    parser.add_argument("--one", choices=list(READERS), help=argparse.SUPPRESS)
    parser.add_argument("--at", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        faulthandler.enable()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY * 2, MEMORY * 2))
        print(json.dumps(asdict(fuzz(given.one, given.seed, given.first, given.count, given.at))))
        return 0
    if given.count == 1:
        for reader in given.readers:
            with tempfile.TemporaryDirectory() as folder:
                opened = READERS[reader](Path(folder))
                data = input_of(opened, reader, given.seed, given.first)
                print(data[:2000])
                print(opened.read(data))
        return 0
    results: dict[str, Found] = {}
    with ThreadPoolExecutor(given.processes) as pool:
        futures = [pool.submit(in_a_process, r, given.seed, given.first, given.count) for r in given.readers]
        for future in futures:
            one = future.result()
            results[one.reader] = one
            print(f"{one.reader}: {one.inputs:,} inputs, {one.tracebacks} tracebacks", file=sys.stderr, flush=True)
            for wrong, number in one.first.items():
                again = f"'--readers={one.reader}' --seed {given.seed} --first {number} --count 1"
                print(f"  {wrong}: python -m tests.fuzz.run {again}", file=sys.stderr, flush=True)
    print(table(list(results.values())))
    return int(any(each.tracebacks for each in results.values()))


if __name__ == "__main__":
    sys.exit(main())
