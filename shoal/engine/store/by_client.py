"""A number for each client that was met so far."""

from __future__ import annotations

import math
from array import array


class ByClient:
    """Seconds by client, in one piece of memory: a dictionary of a million would be two million small objects.

    What it holds is not NaN; clients are numbered from 0, and one that has no number is `None` to `get`.
    """

    def __init__(self) -> None:
        self._of = array("d")
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, client: int) -> bool:
        return self.get(client) is not None

    def __setitem__(self, client: int, value: float) -> None:
        self._count += client not in self
        if client >= len(self._of):
            self._of.extend([math.nan] * (client + 1 - len(self._of)))
        self._of[client] = value

    def get(self, client: int) -> float | None:
        """Return the number of a client, if it has one."""
        if client >= len(self._of) or math.isnan(self._of[client]):
            return None
        return self._of[client]
