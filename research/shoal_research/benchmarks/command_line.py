"""CPU seconds before the command line answers: help, version, completion and a refused setting.

python -m shoal_research.benchmarks.command_line
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

COMMANDS: tuple[tuple[str, ...], ...] = (
    ("--help",),
    ("--version",),
    ("run", "--help"),
    ("study", "--help"),
    ("data", "add", "--help"),
    ("run", "--set", "model.encoder=resnet99"),
)


def cpu_seconds(*command: str, home: str, **variables: str) -> float:
    """User and system time of one command and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, cwd=home, env=os.environ | variables, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    shoal = str(Path(sys.executable).with_name("shoal"))
    completion = {"_SHOAL_COMPLETE": "complete_bash", "COMP_WORDS": "shoal da", "COMP_CWORD": "1"}
    print("| command | CPU s, least | CPU s, median |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as home:
        rows: list[tuple[str, tuple[str, ...], dict[str, str]]] = [
            ("an empty Python program", (sys.executable, "-c", "pass"), {}),
            *((f"`shoal {' '.join(words)}`", (shoal, *words), {}) for words in COMMANDS),
            ("completion of `shoal da`", (shoal,), completion),
        ]
        for name, command, variables in rows:
            spent = [cpu_seconds(*command, home=home, **variables) for _ in range(repeats)]
            print(f"| {name} | {min(spent):.2f} | {median(spent):.2f} |")


if __name__ == "__main__":
    main()
