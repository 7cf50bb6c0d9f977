"""The simulated delay of a run on slow links, from the bytes that the engine counted.

A round lasts as long as its slowest device: broadcast down, messages up, messages to its neighbours one after another,
and the measured time of choosing what to send them. Training takes no time. The same model serves every method's runs;
which rounds of a client are such an exchange, the metric `SELECTING` says.
"""

from __future__ import annotations

import pandas as pd

from shoal.engine.store.run_folder import RunFolder
from shoal.methods.contract.base import SELECTING

RATE = 1e6
"""Bits per second of every link."""


def delays(run: RunFolder) -> pd.DataFrame:
    """Return columns round and delay: the simulated seconds from the start of a run to the end of each round."""
    clients = run.table("clients")
    seconds = 8 * clients[["bytes_down", "bytes_up", "bytes_d2d"]].sum(axis=1) / RATE
    if SELECTING in clients:
        seconds += clients["seconds"].where(clients[SELECTING] > 0, 0)
    slowest = seconds.groupby(clients["round"]).max()
    return slowest.cumsum().rename("delay").reset_index()
