"""What became of every try on a cluster, and the table of all of them."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

LONGEST = 60.0
"""Seconds for which nothing may happen after an event, until the run goes on or its driver has ended."""
BY_ITSELF = "went on by itself"
STOPPED = "stopped, resumable"


@dataclass(frozen=True)
class ClusterOutcome:
    """What became of one try.

    Args:
        event: what happened to the cluster.
        runner: dask.
        method: of the run.
        moment: where the run stood.
        seconds: from the event to the end of the driver; where the run went on by itself, the longest time in which no
            client and no round was finished.
        ended: how the run ended: `BY_ITSELF`, `STOPPED`, or how else, which is wrong.
        same: after it was resumed, where that was needed, it came to the numbers of a straight run.
        said: the sentence by which the run stopped.
        resumed: where it was resumed, if it was.
        hung: a driver did not end.
        traceback: a driver showed a traceback.
        left: processes of the driver's that were there when it had ended.
        note: what was wrong, for people.
    """

    event: str
    runner: str
    method: str
    moment: str
    seconds: float
    ended: str
    same: bool
    said: str = ""
    resumed: str = ""
    hung: bool = False
    traceback: bool = False
    left: int = 0
    note: str = ""

    @property
    def right(self) -> bool:
        """Whether all of it was as it must be."""
        well = self.ended in (BY_ITSELF, STOPPED) and self.seconds <= LONGEST
        return well and self.same and not (self.hung or self.traceback or self.left)


COLUMNS = ("event", "moment", "seconds", "the run", "same bits")


def row(outcome: ClusterOutcome) -> tuple[str, ...]:
    """The row of a try."""
    ended = outcome.ended if outcome.right else f"WRONG: {outcome.ended}"
    same = "yes" if outcome.same else "NO"
    return outcome.event, outcome.moment, f"{outcome.seconds:.0f}", ended, same


def summary(outcomes: list[ClusterOutcome]) -> dict[str, int]:
    """How many tries there were, and of how many what holds."""
    ends = Counter(outcome.ended for outcome in outcomes)
    return {
        "tries": len(outcomes),
        "right": sum(outcome.right for outcome in outcomes),
        BY_ITSELF: ends[BY_ITSELF],
        STOPPED: ends[STOPPED],
        "same bits": sum(outcome.same for outcome in outcomes),
        "hangs": sum(outcome.hung for outcome in outcomes),
        f"longer than {LONGEST:.0f} s": sum(outcome.seconds > LONGEST for outcome in outcomes),
        "tracebacks": sum(outcome.traceback for outcome in outcomes),
        "processes left": sum(outcome.left for outcome in outcomes),
    }


def machine() -> dict[str, Any]:
    """Where and when the tries were made."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cores": os.cpu_count(),
        "gigabytes": round(psutil.virtual_memory().total / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "load": round(os.getloadavg()[2], 1),
    }


def markdown(outcomes: list[ClusterOutcome]) -> str:
    """The table, a row a try, ordered by event."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|---|---:|---|---|"]
    lines += ["| " + " | ".join(row(each)) + " |" for each in sorted(outcomes, key=lambda o: (o.event, o.runner))]
    return "\n".join(lines) + "\n"


def about(outcomes: list[ClusterOutcome], seed: int, seconds: float, settings: dict[str, Any]) -> str:
    """What the table is of, in a few sentences."""
    where, found = machine(), summary(outcomes)
    counts = ", ".join(f"{count} {what}" for what, count in found.items())
    given = ", ".join(f"workers.{key}={value}" for key, value in settings.items())
    return (
        f"Seed {seed}, {seconds / 60:.0f} minutes, on {where['date']}: {where['cores']} cores and {where['gigabytes']} "
        f"GB, {where['system']}, a load of {where['load']}. Beside the defaults: {given}. All together: {counts}.\n"
    )


def write(
    outcomes: list[ClusterOutcome], folder: Path, seed: int, seconds: float, settings: dict[str, Any] | None = None
) -> None:
    """clusters.md and clusters.json in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "clusters.md").write_text(
        markdown(outcomes) + "\n" + about(outcomes, seed, seconds, settings or {}),
    )
    facts = {"seed": seed, "seconds": round(seconds), "machine": machine(), "settings": settings or {}}
    text = json.dumps(
        {**facts, "summary": summary(outcomes), "tries": [asdict(o) | {"right": o.right} for o in outcomes]}, indent=1
    )
    (folder / "clusters.json").write_text(text + "\n")


def outcomes_in(path: Path) -> list[ClusterOutcome]:
    """The tries of a clusters.json."""
    tries = json.loads(path.read_text())["tries"]
    return [ClusterOutcome(**{key: fact for key, fact in each.items() if key != "right"}) for each in tries]
