"""Notify the user: append a line to `runs/told.log`.

The path is no parameter of the flow `tell`: otherwise everybody who can start a flow run could name any file.
"""

from __future__ import annotations

import fcntl
import re
from datetime import UTC, datetime

from shoal.core.errors import ShoalError, short_text
from shoal.engine.settings import places

APPROVAL = "a model waits for approval"
"""Kind of event: a night of `night.promote: ask` found a better model."""
LEFT_OUT = "files were left out"
"""Kind of event: a night left out new files that it could not use."""
PREFECTS_WORDS = r"Flow run encountered an exception: (\w+: )?"
"""The words that Prefect puts before the sentence of an error."""


class TellError(ShoalError):
    """The user could not be notified."""


def notify(message: str, kind: str) -> str:
    """Append a line to `runs/told.log`, unless the file has it.

    A night that fails and the automation of Prefect's server both report it, and the file must show it once.

    Args:
        message: what happened.
        kind: the kind of event; it begins the line.

    Returns:
        The line.

    Raises:
        TellError: the file cannot be written.
    """
    words = " ".join(message.split())
    text = f"{kind}: {re.sub(PREFECTS_WORDS, '', words)}"
    line = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}Z {text}"
    path = places.runs() / "told.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX)
            opened.seek(0)
            if not any(known.rstrip("\n").endswith(text) for known in opened):
                opened.write(f"{line}\n")
    except (OSError, ValueError) as error:
        raise TellError(f"you could not be notified: {path} cannot be written ({short_text(error)})") from error
    return line
