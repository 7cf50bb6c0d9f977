"""A run of the list of runs, in a line."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

UNREADABLE = "unreadable"
"""The state of a run whose files cannot be trusted any more."""


@dataclass(frozen=True)
class ListedRun:
    """A run in a line.

    Args:
        name: of its folder.
        method, data: as in its settings; empty where these cannot be read.
        state: running, finished, interrupted, stopped, failed or unreadable; a run that says it runs and that no
            process works on was interrupted.
        rounds: rounds done.
        score: name and value of the first number that judges it; None where it was not judged.
        bytes: on the disk.
        seconds: of all rounds.
        why: what is wrong with it, where something is.
        epsilon: of private updates: of a client's messages in this run, and in all private runs on its data set up to
            its end; of noise that is not secret infinite, and None for the set.
        verdict: good, doubtful or chance; empty where there is none.
    """

    name: str
    method: str = ""
    data: str = ""
    state: str = UNREADABLE
    rounds: int = 0
    score: tuple[str, float] | None = None
    bytes: int = 0
    seconds: float = 0.0
    why: str = ""
    epsilon: tuple[float, float | None] | None = None
    verdict: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the run as JSON, which has no infinite numbers: None stands for one."""
        epsilon = self.epsilon and [e if e is not None and math.isfinite(e) else None for e in self.epsilon]
        return asdict(self) | {"epsilon": epsilon}
