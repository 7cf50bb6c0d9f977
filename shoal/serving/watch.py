"""The watcher of `shoal serve`: it ends the parts after the main process was killed, so that none keeps its port.

It reads the ids of process groups from its standard input, one a line, and waits for the end of the input. The input
ends when the process at the other end of the pipe ends, for whatever reason. The watcher imports nothing of Shoal.
"""

from __future__ import annotations

import os
import signal
import sys
import time

DONE = "done"
"""The line that tells the watcher that all parts have ended."""
GRACE_SECONDS = 15.0
"""Time in which a process group may end after SIGTERM."""


def is_there(group: int) -> bool:
    """Return whether a process group has a process."""
    try:
        os.killpg(group, 0)
    except OSError:
        return False
    return True


def end(groups: list[int]) -> None:
    """End process groups: send SIGTERM, and after `GRACE_SECONDS` SIGKILL to those that are left."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        for group in groups:
            if is_there(group):
                os.killpg(group, how)
        deadline = time.monotonic() + GRACE_SECONDS
        while any(is_there(group) for group in groups) and time.monotonic() < deadline:
            time.sleep(0.1)


def main() -> None:
    """Wait for the end of the input, then end the process groups that it named."""
    groups: list[int] = []
    for line in sys.stdin:
        if line.strip() == DONE:
            return
        groups.append(int(line))
    end(groups)


if __name__ == "__main__":
    main()
