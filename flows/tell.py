"""The flow that tells somebody: a line in a file, and a command of the user's choice; an automation starts it."""

from __future__ import annotations

import fcntl
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tasks.prefect_environment import quiet

quiet()

from prefect import flow  # noqa: E402 (its environment comes first)

from core.errors import ShoalError, brief  # noqa: E402
from engine import places  # noqa: E402

TOLD = "SHOAL_TOLD"
"""The variable in which a command finds the line."""
FAILED = "a night failed"
"""What the automation of prefect.yaml calls it."""
PATIENCE = 60
"""Seconds that a command has."""


class TellError(ShoalError):
    """Nobody could be told."""


@flow(name="tell", retries=2, retry_delay_seconds=5)
def tell(message: str, what: str = "told", file: str = "runs/told.log", command: list[str] | None = None) -> str:
    """Append a line to a file, and run a command with it, such as one that sends mail.

    Args:
        message: what happened.
        what: what kind of thing that is.
        file: below the home folder, or anywhere.
        command: a program and its arguments; finds the line on its standard input and in SHOAL_TOLD.

    Returns:
        The line.

    Raises:
        TellError: the file cannot be written, or the command failed.
    """
    text = f"{what}: {' '.join(message.split())}"
    line = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}Z {text}"
    try:
        write_once(places.home() / Path(file).expanduser(), line, text)
        if command:
            environment = {**os.environ, TOLD: line}
            subprocess.run(
                command, input=line, env=environment, text=True, check=True, timeout=PATIENCE, capture_output=True
            )
    except (OSError, subprocess.SubprocessError) as error:
        raise TellError(f"nobody could be told ({brief(error)}): mend the deployment's file or command") from error
    return line


def write_once(path: Path, line: str, text: str) -> None:
    """Append a line to a file that has no line which ends in a text.

    A night that fails writes it itself, whether or not Prefect's server starts the automation.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        opened.seek(0)
        if not any(known.rstrip("\n").endswith(text) for known in opened):
            opened.write(f"{line}\n")


def tell_failure(flow: Any, flow_run: Any, state: Any) -> None:
    """A hook for flows that fail: the line that the automation of prefect.yaml has told, written at once."""
    tell.fn(f"{flow_run.name} ({flow_run.id}): {state.message}", FAILED)
