"""The list of all runs: a line a run. Lines of runs that ended are kept, so that a thousand runs are listed at once.

`KEPT`, a file among the runs, holds the line of each run that ended and a digest of the names, sizes and times of its
files; where the digest differs, the line is made again. Losing the file loses nothing. This module imports little: the
lines that are not kept are made by `shoal.review.results.runs`, whose import takes longer.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shoal.engine.store.run_order import in_order
from shoal.engine.store.status import FAILED, FINISHED, STOPPED
from shoal.review.results.listed_run import ListedRun

KEPT = ".listed.json"
"""The file, among the runs, with the lines of runs that ended."""
ENDED = (FINISHED, STOPPED, FAILED)
"""The states in which only files of a run can change its line; others depend on whether a process works on it."""
FORMAT = 2
"""The format of `KEPT`: lines of another format are made again."""
CHANGING = ("lock", "claim")
"""Files of a run that change without changing its line."""


@dataclass(frozen=True)
class KeptLine:
    """The line of a run that ended.

    Args:
        files: digest of the names, sizes and times of its files.
        line: the run in a line.
    """

    files: str
    line: ListedRun


def listed_runs(
    runs: Path, *, method: str | None = None, data: str | None = None, states: Sequence[str] = ()
) -> list[ListedRun]:
    """Return the runs of a folder, the newest first.

    Args:
        runs: the folder.
        method, data: only runs of these.
        states: only runs in one of these states.
    """
    before = read_kept(runs)
    lines = {path.parent.name: kept_or_made(path.parent, before) for path in reversed(in_order(runs))}
    now = {name: kept for name, kept in lines.items() if kept.line.state in ENDED}
    if now != before:
        write_kept(runs, now)
    found = [kept.line for kept in lines.values()]
    return [
        run
        for run in found
        if (method is None or run.method == method)
        and (data is None or run.data == data)
        and (not states or run.state in states)
    ]


def keep_line(run: Path) -> None:
    """Keep the line of a run that has ended, so that the next list need not make it; a failure is no error.

    Args:
        run: the run's folder.
    """
    with contextlib.suppress(Exception):  # the list makes the line when it is wanted
        kept = kept_or_made(run, {})
        if kept.line.state in ENDED:
            write_kept(run.parent, {**read_kept(run.parent), run.name: kept})


def kept_or_made(run: Path, kept: Mapping[str, KeptLine]) -> KeptLine:
    """Return the line of a run: the one that is kept, if the run's files are as they were then, else a new one."""
    files = digest_of_files(run)
    if run.name in kept and kept[run.name].files == files:
        return kept[run.name]
    from shoal.engine.store.run_folder import RunFolder  # here: with the tables of runs they take a second to import
    from shoal.review.results.runs import list_run

    return KeptLine(files, list_run(RunFolder(run)))


def digest_of_files(run: Path) -> str:
    """Return a digest of the names, sizes and times of the files and folders in a run's folder."""
    facts = []
    with contextlib.suppress(OSError), os.scandir(run) as entries:
        for entry in entries:
            if entry.name not in CHANGING:
                about = entry.stat(follow_symlinks=False)
                facts.append(f"{entry.name} {about.st_size} {about.st_mtime_ns}")
    return hashlib.sha256("\n".join(sorted(facts)).encode()).hexdigest()[:32]


def read_kept(runs: Path) -> dict[str, KeptLine]:
    """Return the kept lines by the names of their runs; none where the file is missing or cannot be used."""
    try:
        found = json.loads((runs / KEPT).read_bytes())
        if found["format"] != FORMAT:
            return {}
        return {name: KeptLine(files, line_from_json(line)) for name, (files, line) in found["runs"].items()}
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def line_from_json(line: dict[str, Any]) -> ListedRun:
    """Return a line from `KEPT`.

    Raises:
        TypeError: it has other entries.
    """
    score = line["score"]
    epsilon = line["epsilon"]
    return ListedRun(**{**line, "score": score and tuple(score), "epsilon": epsilon and tuple(epsilon)})


def write_kept(runs: Path, kept: Mapping[str, KeptLine]) -> None:
    """Write the kept lines; where that fails, the next list makes them again."""
    found = {name: (each.files, asdict(each.line)) for name, each in kept.items()}
    scratch = runs / f"{KEPT}.{os.getpid()}"
    with contextlib.suppress(OSError):
        scratch.write_text(json.dumps({"format": FORMAT, "runs": found}))
        scratch.replace(runs / KEPT)
    with contextlib.suppress(OSError):
        scratch.unlink(missing_ok=True)
