"""The flow that tells somebody: a line in a file, and a command of the user's choice; an automation starts it.

File and command stand in `tell.yaml` of the home folder, which nobody but its user may have written. They are no
parameters: whoever can start a flow run could name any file and any program.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shoal.tasks.prefect.environment import quiet

quiet()

from prefect import flow  # noqa: E402 (its environment comes first)

from shoal.core.errors import ShoalError, brief  # noqa: E402
from shoal.engine.settings import places  # noqa: E402
from shoal.engine.settings.yaml_text import read_yaml  # noqa: E402
from shoal.engine.store.private_file import read_private  # noqa: E402

TOLD = "SHOAL_TOLD"
"""The variable in which a command finds the line."""
FAILED = "a night failed"
"""What the automation of prefect.yaml calls it."""
PATIENCE = 60
"""Seconds that a command has."""


class TellError(ShoalError):
    """Nobody could be told."""


@dataclass(frozen=True)
class Tell:
    """What `tell.yaml` says.

    Args:
        file: takes the lines; below the home folder, or anywhere.
        command: a program and its arguments; none is run where there is none.
    """

    file: str = "runs/told.log"
    command: tuple[str, ...] = ()


def read_tell(path: Path) -> Tell:
    """Return what a `tell.yaml` says; the defaults where there is none.

    Raises:
        PrivateFileError: somebody else may have written it. TellError: it says something else.
    """
    text = read_private(path, secret=False)
    given = None if text is None else read_yaml(text, str(path), TellError)
    if given is None:
        return Tell()
    if not isinstance(given, dict) or not given.keys() <= {"file", "command"}:
        raise TellError(f"{path} must hold nothing but file: PATH and command: [PROGRAM, ARGUMENT, ...]")
    file = given.get("file", Tell.file)
    if not isinstance(file, str) or not file:
        raise TellError(f"{path}: file is {file!r}, expected the path of a file")
    command = given.get("command") or []
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        raise TellError(f"{path}: command is {command!r}, expected a list of a program and its arguments, in quotes")
    return Tell(file, tuple(command))


@flow(name="tell", retries=2, retry_delay_seconds=5)
def tell(message: str, what: str = "told") -> str:
    """Append a line to a file, and run a command with it, such as one that sends mail: those that `tell.yaml` names.

    The command finds the line on its standard input and in SHOAL_TOLD.

    Args:
        message: what happened.
        what: what kind of thing that is.

    Returns:
        The line.

    Raises:
        TellError: the file cannot be written, or the command failed. PrivateFileError: others may write `tell.yaml`.
    """
    wanted = read_tell(places.tell_file())
    text = f"{what}: {' '.join(message.split())}"
    line = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}Z {text}"
    try:
        write_once(places.home() / Path(wanted.file).expanduser(), line, text)
        if wanted.command:
            environment = {**os.environ, TOLD: line}
            subprocess.run(
                wanted.command,
                input=line,
                env=environment,
                text=True,
                check=True,
                timeout=PATIENCE,
                capture_output=True,
            )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise TellError(f"nobody could be told ({brief(error)}): mend file or command in tell.yaml") from error
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
