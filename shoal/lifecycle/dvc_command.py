"""DVC's commands, also after one that was killed: what it left in DVC's list of readers and writers is forgotten.

DVC lists who reads and writes which path in `.dvc/tmp/rwlock`, and refuses a path that another process writes. A
process that was killed stays in the list. DVC forgets it only if no process has its number: neither the killed one, as
long as its parent has not asked for its exit code (in a container without an init that is for ever), nor a later one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from shoal.engine.settings.private_home import make_cache, user_umask
from shoal.engine.store.shared_temp import name_user

RWLOCK = Path(".dvc", "tmp", "rwlock")
CLOCK_SECONDS = 60.0
"""The greatest error of a clock: a process that began later than this after the list was written is not in it."""


def dvc(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of DVC, a second time if it was refused because of a process that has ended.

    Args:
        root: of the DVC repository.
        words: the command.
    """
    done = _run(root, *words)
    if done.returncode and forget_ended(root):
        done = _run(root, *words)
    return done


def _run(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    make_cache(root)
    name_user()
    command = [sys.executable, "-m", "dvc", *words]
    return subprocess.run(command, cwd=root, umask=user_umask(), capture_output=True, text=True)


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """Return on one line why DVC refused a command."""
    return " ".join((done.stderr or done.stdout).split()).removeprefix("ERROR: ")


def forget_ended(root: Path) -> bool:
    """Take processes that have ended out of DVC's list of readers and writers.

    A list that a kill has cut short, which DVC cannot read, becomes an empty one.

    Args:
        root: of the DVC repository.

    Returns:
        Whether the list had such a process.
    """
    path = root / RWLOCK
    if not path.exists():
        return False
    with path.with_name("rwlock.lock").open("a") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)  # as DVC does while it changes the list
        text = path.read_text()
        kept = _without_ended(text, path.stat().st_mtime + CLOCK_SECONDS)
        if kept == text:
            return False
        path.write_text(kept)
        return True


def _without_ended(text: str, since: float) -> str:
    """Return the list without processes that have ended; as it is where there are none."""
    try:
        known: dict[str, dict[str, Any]] = json.loads(text)
        entries = {mode: dict(known.get(mode, {})) for mode in ("read", "write")}
        readers = {path: [each for each in all_ if is_working(each, since)] for path, all_ in entries["read"].items()}
        writers = {path: each for path, each in entries["write"].items() if is_working(each, since)}
    except (ValueError, TypeError, AttributeError, KeyError):
        return "{}"
    readers = {path: left for path, left in readers.items() if left}
    if (readers, writers) == (entries["read"], entries["write"]):
        return text
    return json.dumps({"read": readers, "write": writers})


def is_working(entry: dict[str, Any], since: float) -> bool:
    """Return whether the process of an entry still works.

    Args:
        entry: of DVC's list, with the `pid` of the process.
        since: when the list was written, in seconds since 1970; a process that began later has only got the number.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(int(entry["pid"]))
        return bool(process.status() != psutil.STATUS_ZOMBIE and process.create_time() <= since)
    return False
