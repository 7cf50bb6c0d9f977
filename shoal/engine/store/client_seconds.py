"""Measured seconds by client."""

from __future__ import annotations

import math
from array import array


class ClientSeconds:
    """The seconds of each client that was measured, in one array: there may be a million clients.

    Clients are numbered from 0; NaN in the array means not measured.
    """

    def __init__(self) -> None:
        self._seconds = array("d")
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, client: int) -> bool:
        return self.get(client) is not None

    def __setitem__(self, client: int, value: float) -> None:
        self._count += client not in self
        if client >= len(self._seconds):
            self._seconds.extend([math.nan] * (client + 1 - len(self._seconds)))
        self._seconds[client] = value

    def get(self, client: int) -> float | None:
        """Return the seconds of a client; None if it was not measured."""
        if client >= len(self._seconds) or math.isnan(self._seconds[client]):
            return None
        return self._seconds[client]
