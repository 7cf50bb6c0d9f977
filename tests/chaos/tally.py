"""What became of every try, and the table of all of them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Outcome:
    """What became of one try.

    Args:
        event: what happened to the run.
        method: of the run.
        same: it came to the same numbers as the straight run.
        hung: a process did not end within its time.
        traceback: a process showed a traceback.
        note: what was wrong, for people; of a night also where it was killed.
    """

    event: str
    method: str
    same: bool
    hung: bool = False
    traceback: bool = False
    note: str = ""


COLUMNS = ("event", "tries", "resumed to the same bits", "wrong", "hangs", "tracebacks")


def rows(outcomes: list[Outcome]) -> list[tuple[str | int, ...]]:
    """A row an event, and one of all."""
    tries = Counter(outcome.event for outcome in outcomes)
    found: list[tuple[str | int, ...]] = []
    for event in [*sorted(tries), "all"]:
        own = [outcome for outcome in outcomes if event in (outcome.event, "all")]
        same = sum(outcome.same for outcome in own)
        hangs, tracebacks = sum(outcome.hung for outcome in own), sum(outcome.traceback for outcome in own)
        found.append((event, len(own), same, len(own) - same, hangs, tracebacks))
    return found


def markdown(outcomes: list[Outcome]) -> str:
    """The table."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|" + "---:|" * (len(COLUMNS) - 1)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows(outcomes)]
    return "\n".join(lines) + "\n"


def write(outcomes: list[Outcome], folder: Path, seed: int, seconds: float) -> None:
    """chaos.md and chaos.json in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    methods = Counter(outcome.method for outcome in outcomes)
    about = f"Seed {seed}, {len(methods)} methods, {seconds / 60:.0f} minutes.\n"
    (folder / "chaos.md").write_text(markdown(outcomes) + "\n" + about)
    table = [dict(zip(COLUMNS, row, strict=True)) for row in rows(outcomes)]
    about_all = {"seed": seed, "seconds": round(seconds), "methods": dict(sorted(methods.items()))}
    text = json.dumps({**about_all, "table": table, "tries": [asdict(each) for each in outcomes]}, indent=1)
    (folder / "chaos.json").write_text(text + "\n")
