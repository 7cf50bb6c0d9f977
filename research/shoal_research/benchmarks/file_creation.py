"""What the creation of a file costs on a file system, over rounds that each make and remove as many as a run does.

    python -m shoal_research.benchmarks.file_creation FOLDER --rounds 1200

A round of 100 clients makes 300 files: message, memory and done-file of each. Some file systems take longer for one the
more were removed lately, which looks as if late rounds of a run were dearer.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path


def costs(folder: Path, rounds: int, files: int = 300, pause: float = 0.05) -> list[float]:
    """Seconds a file of each round.

    Args:
        folder: where a scratch folder is made.
        rounds: how many.
        files: of a round.
        pause: seconds after a round.
    """
    found = []
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        for round in range(rounds):
            here = Path(scratch) / f"{round:04d}"
            here.mkdir()
            began = time.perf_counter()
            for number in range(files):
                os.close(os.open(here / str(number), os.O_CREAT | os.O_WRONLY))
            found.append((time.perf_counter() - began) / files)
            for number in range(files):
                (here / str(number)).unlink()
            here.rmdir()
            time.sleep(pause)
    return found


def main() -> None:
    """A table on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=1200)
    given = parser.parse_args()
    found = costs(given.folder, given.rounds)
    part = max(1, given.rounds // 12)
    print("| rounds | us a file |")
    print("|---|---|")
    for start in range(0, given.rounds, part):
        print(f"| {start + 1:,} to {start + part:,} | {1e6 * statistics.median(found[start : start + part]):.1f} |")


if __name__ == "__main__":
    main()
