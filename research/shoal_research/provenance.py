"""The provenance of a study's numbers: code, versions, machine, time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from shoal.engine.settings.machine import Machine
from shoal.engine.store.code_version import GitState
from shoal.engine.store.lineage import Environment
from shoal.engine.store.run_folder import RunFolder
from shoal.review.results.result import run_result

UNKNOWN = "unknown"
"""In place of a commit, outside of a repository."""
NO_GPU = "no GPU"
"""Of a machine, where others have the names of their GPUs."""
CHANGED = "+"
"""After a commit whose work tree differed."""


@dataclass(frozen=True)
class Provenance:
    """Code, versions, machine and time of the numbers of a result.

    Attributes:
        commits: of the code, each once, in the order of the runs; a + follows where the work tree differed.
        versions: of the packages that decide numbers, of the newest run.
        machine: a line on the machines, each once.
        date: of the newest number, as YYYY-MM-DD.
        seconds: of all rounds of all runs, or of all simulated cells; None where some are unknown.
    """

    commits: tuple[str, ...]
    versions: dict[str, str]
    machine: str
    date: str
    seconds: float | None


def from_runs(runs: Sequence[RunFolder]) -> Provenance:
    """Return the provenance of runs."""
    ordered = sorted(runs, key=lambda run: run.name)
    return from_lineages(
        [run.lineage().environment for run in ordered],
        max((run.status().updated or 0.0 for run in ordered), default=0.0),
        sum(run_result(run).seconds for run in ordered),
    )


def from_lineages(environments: Sequence[Environment], newest: float, seconds: float | None) -> Provenance:
    """Return the provenance of numbers.

    Args:
        environments: what computed them, in order of time.
        newest: time of the newest number, in seconds since 1970.
        seconds: that the numbers took.
    """
    return Provenance(
        once(commit(each.shoal_git) for each in environments),
        dict(environments[-1].versions) if environments else {},
        "; ".join(once(machine(each.hardware) for each in environments)),
        datetime.fromtimestamp(newest, UTC).strftime("%Y-%m-%d"),
        None if seconds is None else round(seconds, 1),
    )


def combined(earlier: Provenance, later: Provenance) -> Provenance:
    """Return the provenance of older and newer numbers together."""
    seconds = None
    if earlier.seconds is not None and later.seconds is not None:
        seconds = round(earlier.seconds + later.seconds, 1)
    return Provenance(
        once([*earlier.commits, *later.commits]),
        later.versions,
        "; ".join(once([*earlier.machine.split("; "), *later.machine.split("; ")])),
        max(earlier.date, later.date),
        seconds,
    )


def commit(git: GitState) -> str:
    """Return a commit in twelve digits, with a + where the work tree differed."""
    if not git.commit:
        return UNKNOWN
    return f"{git.commit[:12]}{CHANGED}" if git.dirty else git.commit[:12]


def machine(hardware: Machine) -> str:
    """Return a machine in one line, without its name."""
    gpus = ", ".join(dict.fromkeys(hardware.gpus)) or NO_GPU
    system = hardware.system.split()[0]
    return f"{hardware.cores} cores {hardware.machine}, {gpus}, {system}, Python {hardware.python}"


def once(values: Iterable[str]) -> tuple[str, ...]:
    """Return each value once, in order."""
    return tuple(dict.fromkeys(values))
