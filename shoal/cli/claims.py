"""The command `shoal claims`: keep results, make the pages of docs/results, and show every claim's verdict."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from shoal.studies.claims import Verdict
from shoal.studies.definition import load_study, study_names
from shoal.studies.kept import DOCS, keep
from shoal.studies.pages import write_pages
from shoal.studies.verdicts import Entry, entries
from shoal.studies.wording import measured, why

COLOURS = {Verdict.REPRODUCED: "green", Verdict.OPPOSITE: "red", Verdict.SMALLER: "red"}
"""Yellow are verdicts that leave a claim open."""


def claims_command(
    out: Console,
    err: Console,
    names: Sequence[str],
    kept: str,
    scale: str,
    write: bool,
    as_json: bool,
    docs: Path | None = None,
) -> None:
    """What `shoal claims` does."""
    docs = DOCS if docs is None else docs.resolve()
    if kept:
        err.print(f"kept: {keep(load_study(kept), scale, docs)}", highlight=False, soft_wrap=True)
    if write:
        for path in write_pages(docs):
            err.print(f"written: {path.relative_to(docs.parent)}", highlight=False, soft_wrap=True)
    chosen = names or ([kept] if kept else study_names())
    found = [entry for name in chosen for entry in entries(load_study(name), docs)]
    if as_json:
        print(json.dumps([entry_json(entry) for entry in found]))
        return
    study = ""
    for entry in found:
        if entry.study.name != study:
            study = entry.study.name
            out.print(f"[bold]{study}[/]: {entry.study.title}", highlight=False)
        show(out, entry)


def show(out: Console, entry: Entry) -> None:
    """A claim in a line."""
    colour = COLOURS.get(entry.verdict, "yellow")
    marks = ("settings have changed since" * entry.stale, "the rule was written after the run" * entry.later)
    said = "; ".join(filter(None, (measured(entry.checked), why(entry.checked), *marks)))
    after = f" ({said})" if said else f": {entry.command}"
    out.print(f"  [{colour}]{entry.verdict}[/]  {entry.claim.claim}, {entry.scale}{after}", highlight=False)


def entry_json(entry: Entry) -> dict[str, object]:
    """A claim as JSON."""
    interval = entry.checked.interval
    return {
        "study": entry.study.name,
        "scale": entry.scale,
        "claim": entry.claim.claim,
        "verdict": entry.verdict,
        "mean": interval and interval.mean,
        "low": interval and interval.low,
        "high": interval and interval.high,
        "visible": interval and interval.visible,
        "looked_for": entry.checked.looked_for,
        "differences": entry.checked.differences,
        "seeds": entry.checked.of_seeds,
        "planned": entry.checked.seeds,
        "stale": entry.stale,
        "later": entry.later,
        "command": entry.command,
    }
