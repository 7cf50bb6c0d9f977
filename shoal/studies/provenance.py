"""The provenance of a study's numbers: code, versions, machine, time."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shoal.engine.settings.hardware import describe
from shoal.engine.store.lineage import git_state, versions
from shoal.engine.store.run_folder import RunFolder
from shoal.review.results.result import run_result


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


def here() -> dict[str, Any]:
    """Return this code and machine as the lineage of a run has them."""
    return {"git": git_state(Path(__file__).parent), "hardware": describe(), "versions": versions()}


def from_runs(runs: Sequence[RunFolder]) -> Provenance:
    """Return the provenance of runs."""
    ordered = sorted(runs, key=lambda run: run.name)
    return from_lineages(
        [run.lineage() for run in ordered],
        max((run.status()["updated"] for run in ordered), default=0.0),
        sum(run_result(run).seconds for run in ordered),
    )


def from_lineages(lineages: Sequence[dict[str, Any]], newest: float, seconds: float) -> Provenance:
    """Return the provenance of numbers.

    Args:
        lineages: with the keys of `here`, in order of time.
        newest: time of the newest number, in seconds since 1970.
        seconds: that the numbers took.
    """
    return Provenance(
        once(commit(lineage["git"]) for lineage in lineages),
        dict(lineages[-1]["versions"]) if lineages else {},
        "; ".join(once(machine(lineage["hardware"]) for lineage in lineages)),
        datetime.fromtimestamp(newest, UTC).strftime("%Y-%m-%d"),
        round(seconds, 1),
    )


def combined(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Return the provenance of older and newer numbers together, as a kept result has it.

    Args:
        earlier, later: with the attributes of `Provenance`.
    """
    seconds = None
    if None not in (earlier["seconds"], later["seconds"]):
        seconds = round(earlier["seconds"] + later["seconds"], 1)
    machines = "; ".join(once([*earlier["machine"].split("; "), *later["machine"].split("; ")]))
    return {
        **later,
        "commits": list(once([*earlier["commits"], *later["commits"]])),
        "machine": machines,
        "date": max(earlier["date"], later["date"]),
        "seconds": seconds,
    }


def commit(git: dict[str, Any]) -> str:
    """Return a commit in twelve digits, with a + where the work tree differed."""
    if not git.get("commit"):
        return "unknown"
    return f"{git['commit'][:12]}{'+' if git.get('dirty') else ''}"


def machine(hardware: dict[str, Any]) -> str:
    """Return a machine in one line, without its name."""
    gpus = ", ".join(dict.fromkeys(hardware.get("gpus", ()))) or "no GPU"
    system = str(hardware.get("system", platform.system())).split()[0]
    return f"{hardware['cores']} cores {hardware['machine']}, {gpus}, {system}, Python {hardware['python']}"


def once(values: Iterable[str]) -> tuple[str, ...]:
    """Return each value once, in order."""
    return tuple(dict.fromkeys(values))
