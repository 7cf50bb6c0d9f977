"""The processes that `shoal serve` starts: each leads a process group, which ends with the block that started it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import requests

from shoal.core.errors import ShoalError
from shoal.core.private_file import owner_only

START_SECONDS = 120.0
"""Time in which a part must answer."""
PART_SECONDS = 15.0
"""Time in which a part may end by itself."""


class ServeError(ShoalError):
    """A part of the service could not be started, or ended."""


Parts = dict[str, subprocess.Popen[bytes]]
"""Processes that lead a group, by name."""


@contextlib.contextmanager
def ended_with_the_block() -> Iterator[Parts]:
    """Yield a place for processes, which are ended with the block, the last one first."""
    parts: Parts = {}
    try:
        yield parts
    finally:
        for child in reversed(parts.values()):
            stop(child)


def check(parts: Parts, logs: Path) -> None:
    """Refuse to continue where a process has ended.

    Raises:
        ServeError: names the process and the logs.
    """
    for name, child in parts.items():
        if child.poll() is not None:
            raise ServeError(f"{name} ended with exit code {child.returncode}: see the logs in {logs}")


def program(*words: str) -> list[str]:
    """Return the command of a program of this process's environment."""
    return [str(Path(sys.executable).with_name(words[0])), *words[1:]]


def module(name: str, *words: str) -> list[str]:
    """Return the command of a module of Shoal; the working directory has no influence on what it imports."""
    return [sys.executable, "-P", "-m", name, *words]


def start(log: Path, *words: str, env: dict[str, str | None] | None = None) -> subprocess.Popen[bytes]:
    """Start a part in a process group of its own, so that Ctrl-C reaches it only through this process.

    Args:
        log: takes its output; only the user can read it.
        words: the command.
        env: environment variables to set, or to remove where None.
    """
    merged = {**os.environ, **(env or {})}
    with open(log, "wb", opener=owner_only) as file:
        return subprocess.Popen(
            words,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={name: value for name, value in merged.items() if value is not None},
        )


def run(log: Path, *words: str) -> None:
    """Run a command to its end.

    Raises:
        ServeError: it failed; shows the end of its output.
    """
    done = subprocess.run(program(*words), capture_output=True, text=True, timeout=180, stdin=subprocess.DEVNULL)
    with open(log, "a", opener=owner_only) as file:
        file.write(done.stdout + done.stderr)
    if done.returncode:
        raise ServeError(f"`{' '.join(words)}` failed: {(done.stdout + done.stderr).strip()[-800:]}")


def wait_for(url: str, child: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until an address answers.

    Raises:
        ServeError: the process ended, or nothing answered in time.
    """
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if child.poll() is not None:
            raise ServeError(f"{' '.join(map(str, child.args))} ended at once: see {log}")  # type: ignore[arg-type]
        try:
            if requests.get(url, timeout=2).ok:
                return
        except requests.RequestException:
            time.sleep(0.3)
    raise ServeError(f"{url} did not answer within {START_SECONDS:.0f} s: see {log}")


def stop(child: subprocess.Popen[bytes]) -> None:
    """End a part, and then all that it started, even where the part itself has ended already."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(PART_SECONDS)
