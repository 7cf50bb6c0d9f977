"""What ends the parts of `shoal serve` after its process was killed, so that none keeps its port.

It reads the ids of process groups from its standard input, one a line, and then waits for the end of the input, which
comes when the process that holds the other side of the pipe ends in whatever way. It imports nothing of Shoal's.
"""

from __future__ import annotations

import os
import signal
import sys
import time

DONE = "done"
"""The line that says that all parts were ended."""
GRACE_SECONDS = 15.0


def is_there(group: int) -> bool:
    """Whether a process group has a process."""
    try:
        os.killpg(group, 0)
    except OSError:
        return False
    return True


def end(groups: list[int]) -> None:
    """End process groups: ask them, and after `GRACE_SECONDS` kill what is left."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        for group in groups:
            if is_there(group):
                os.killpg(group, how)
        deadline = time.monotonic() + GRACE_SECONDS
        while any(is_there(group) for group in groups) and time.monotonic() < deadline:
            time.sleep(0.1)


def main() -> None:
    """Wait, then end what was named."""
    groups: list[int] = []
    for line in sys.stdin:
        if line.strip() == DONE:
            return
        groups.append(int(line))
    end(groups)


if __name__ == "__main__":
    main()
