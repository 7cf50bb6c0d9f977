"""The simulated delay of a run on given links, from the bytes that the engine counted.

A round lasts as long as its slowest device: broadcast down, messages up, messages to its neighbours one after another,
and the measured time of choosing what to send them. The same model serves every method's runs; which rounds of a client
are such an exchange, the metric `SELECTING` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pandas as pd

from shoal.core.errors import ShoalError
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.contract.base import SELECTING


@dataclass(frozen=True)
class LinkRates:
    """Rates of a device's links, bits per second, and how parameters and computing count.

    Attributes:
        up, down, d2d: rates of the up-link, the down-link and a device-to-device link.
        between: rates of single device-to-device links by (i, j), i < j, instead of `d2d`.
        parameter_bits: of one number of a message; the engine counts 32.
        pixel_bits: of one value of a raw sample; the engine counts 8 for images.
        exchange_factor: multiplies the measured seconds of rounds in which a device trains nothing and only chooses
            samples for others; 0 leaves them out.
        compute_factor: multiplies the measured seconds of all other work; by default left out.
    """

    up: float = 1e6
    down: float = 1e6
    d2d: float = 1e6
    between: Mapping[tuple[int, int], float] = field(default_factory=dict)
    parameter_bits: int = 32
    pixel_bits: int = 8
    exchange_factor: float = 1.0
    compute_factor: float = 0.0

    def __post_init__(self) -> None:
        """Refuse rates that no link has.

        Raises:
            ShoalError: a rate that is not above 0, a negative factor, or less than one bit.
        """
        for name in ("up", "down", "d2d"):
            if not getattr(self, name) > 0:
                raise ShoalError(f"the rate of the {name} link is {getattr(self, name)}, expected above 0 bit/s")
        for link, rate in self.between.items():
            if not rate > 0 or link[0] >= link[1]:
                raise ShoalError(f"link {link} at {rate} bit/s: expected (i, j) with i < j and a rate above 0")
        for name, lowest in (("compute_factor", 0), ("exchange_factor", 0), ("parameter_bits", 1), ("pixel_bits", 1)):
            if getattr(self, name) < lowest:
                raise ShoalError(f"{name} is {getattr(self, name)}, expected at least {lowest}")


def delays(run: RunFolder, links: LinkRates | None = None) -> pd.DataFrame:
    """Simulate the delay after each round.

    Args:
        run: with at least one round.
        links: rates; by default 1 Mbit/s everywhere, with the time of exchanges and without that of training.

    Returns:
        Columns round, seconds (of the round), delay (from the start).
    """
    links = links or LinkRates()
    clients = run.table("clients")
    factor = links.parameter_bits / 32
    exchanging = pd.Series(False, clients.index)
    if SELECTING in clients:
        exchanging = clients[SELECTING].fillna(0) > 0
    working = clients["seconds"].where(exchanging, 0) * links.exchange_factor
    working += clients["seconds"].where(~exchanging, 0) * links.compute_factor
    # What devices that only exchange send each other are raw samples; anything else is parameters.
    scale = exchanging.map({True: links.pixel_bits / 8, False: factor})
    seconds = (
        8 * factor * (clients["bytes_down"] / links.down + clients["bytes_up"] / links.up)
        + scale * sending_seconds(run, clients, links)
        + working
    )
    slowest = seconds.groupby(clients["round"]).max()
    return pd.DataFrame(
        {"round": slowest.index.astype(int), "seconds": slowest.to_numpy(), "delay": slowest.cumsum().to_numpy()}
    )


def sending_seconds(run: RunFolder, clients: pd.DataFrame, links: LinkRates) -> pd.Series:
    """Return the seconds that each client of each round sends to its neighbours, in the order of the clients table."""
    if not links.between:
        return 8 * clients["bytes_d2d"] / links.d2d
    table = run.table("links")
    if table.empty:
        return pd.Series(0.0, clients.index)
    ends = zip(table[["from", "to"]].min(axis=1), table[["from", "to"]].max(axis=1), strict=True)
    rates = [links.between.get((int(i), int(j)), links.d2d) for i, j in ends]
    seconds = (8 * table["bytes"] / rates).groupby([table["round"], table["from"]]).sum()
    keys = pd.MultiIndex.from_frame(clients[["round", "client"]])
    return pd.Series(seconds.reindex(keys).fillna(0).to_numpy(), clients.index)
