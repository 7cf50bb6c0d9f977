"""Notify the user: append a line to a file, and run a program of the user's choice with it.

The file and the program are set in `tell.yaml` of the home folder, which only its user may be able to write. They are
not parameters of the flow `tell`: otherwise everybody who can start a flow run could name any file and any program.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from shoal.core.errors import ShoalError, short_text
from shoal.core.private_file import read_private
from shoal.engine.settings import places
from shoal.engine.settings.private_home import user_umask
from shoal.engine.settings.yaml_text import read_yaml

LINE_VARIABLE = "SHOAL_TOLD"
"""The environment variable in which the program finds the line."""
APPROVAL = "a model waits for approval"
"""Kind of event: a night of `night.promote: ask` found a better model."""
LEFT_OUT = "files were left out"
"""Kind of event: a night left out new files that it could not use."""
PREFECTS_WORDS = r"Flow run encountered an exception: (\w+: )?"
"""The words that Prefect puts before the sentence of an error."""
COMMAND_SECONDS = 60
"""Time limit of the program."""


class TellError(ShoalError):
    """The user could not be notified."""


@dataclass(frozen=True)
class TellSettings:
    """The content of `tell.yaml`.

    Args:
        file: takes the lines; a relative path starts at the home folder.
        command: a program and its arguments; empty: no program is run.
    """

    file: str = "runs/told.log"
    command: tuple[str, ...] = ()


def read_tell_settings(path: Path) -> TellSettings:
    """Read a `tell.yaml`; return the defaults where there is none.

    Raises:
        PrivateFileError: other users can write the file. TellError: its content is not valid.
    """
    text = read_private(path, secret=False)
    content = None if text is None else read_yaml(text, str(path), TellError)
    if content is None:
        return TellSettings()
    if not isinstance(content, dict) or not content.keys() <= {"file", "command"}:
        raise TellError(f"{path} must hold nothing but file: PATH and command: [PROGRAM, ARGUMENT, ...]")
    file = content.get("file", TellSettings.file)
    if not isinstance(file, str) or not file:
        raise TellError(f"{path}: file is {file!r}, expected the path of a file")
    command = content.get("command") or []
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        raise TellError(f"{path}: command is {command!r}, expected a list of a program and its arguments, in quotes")
    return TellSettings(file, tuple(command))


def notify(message: str, kind: str) -> str:
    """Append a line to the file of `tell.yaml`, and run its command with the line.

    The command finds the line on its standard input and in SHOAL_TOLD.

    Args:
        message: what happened.
        kind: the kind of event; it begins the line.

    Returns:
        The line.

    Raises:
        TellError: the file cannot be written, or the command failed. PrivateFileError: other users can write
            `tell.yaml`.
    """
    settings = read_tell_settings(places.tell_file())
    words = " ".join(message.split())
    text = f"{kind}: {re.sub(PREFECTS_WORDS, '', words)}"
    line = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}Z {text}"
    try:
        append_once(places.home() / Path(settings.file).expanduser(), line, text)
        if settings.command:
            subprocess.run(
                settings.command,
                input=line,
                env={**os.environ, LINE_VARIABLE: line},
                umask=user_umask(),
                text=True,
                check=True,
                timeout=COMMAND_SECONDS,
                capture_output=True,
            )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise TellError(
            f"you could not be notified ({short_text(error)}): correct file or command in tell.yaml"
        ) from error
    return line


def append_once(path: Path, line: str, text: str) -> None:
    """Append a line to a file, unless a line of the file ends with a text.

    A night that fails and the automation of Prefect's server both report it, and the file must show it once.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        opened.seek(0)
        if not any(known.rstrip("\n").endswith(text) for known in opened):
            opened.write(f"{line}\n")
