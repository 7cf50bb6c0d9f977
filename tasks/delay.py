"""How long a run would have taken on given links: simulated delay from the bytes that the engine counted.

A round lasts as long as its slowest device: broadcast down, computing, messages up, messages to neighbours. The same
model serves every method's runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from data.errors import ShoalError
from tasks.runfolder import RunFolder


@dataclass(frozen=True)
class Links:
    """Rates of a device's links, bits per second, and how parameters and computing count.

    Attributes:
        up, down, d2d: rates of the up-link, the down-link and a device-to-device link.
        parameter_bits: of one number of a message; the engine counts 32.
        computing: multiplies the measured seconds of a device's work; 0 leaves them out.
    """

    up: float = 1e6
    down: float = 1e6
    d2d: float = 1e6
    parameter_bits: int = 32
    computing: float = 0.0

    def __post_init__(self) -> None:
        """Refuse rates that no link has.

        Raises:
            ShoalError: a rate that is not above 0, or a negative share of computing.
        """
        for name in ("up", "down", "d2d"):
            if not getattr(self, name) > 0:
                raise ShoalError(f"the rate of the {name} link is {getattr(self, name)}, expected above 0 bit/s")
        if self.computing < 0 or self.parameter_bits < 1:
            raise ShoalError("computing must not be negative, nor a parameter have less than one bit")


def delays(run: RunFolder, links: Links | None = None) -> pd.DataFrame:
    """Simulated delay after each round.

    Args:
        run: with at least one round.
        links: rates; by default 1 Mbit/s everywhere and no computing time.

    Returns:
        Columns round, seconds (of the round), delay (from the start).
    """
    links = links or Links()
    clients = run.table("clients")
    factor = links.parameter_bits / 32
    seconds = (
        8 * factor * (clients["bytes_down"] / links.down + clients["bytes_up"] / links.up)
        # Raw samples keep their size; reserves and pulls are all that CF-CL sends to neighbours.
        + 8 * clients["bytes_d2d"] / links.d2d
        + links.computing * clients["seconds"]
    )
    slowest = seconds.groupby(clients["round"]).max()
    return pd.DataFrame(
        {"round": slowest.index.astype(int), "seconds": slowest.to_numpy(), "delay": slowest.cumsum().to_numpy()}
    )
