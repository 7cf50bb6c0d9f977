"""The table of a CF-CL run's exchange: who was sent whose samples."""

from __future__ import annotations

import torch
from pandas import DataFrame

from shoal.methods.cfcl.memory import read_inbox
from shoal.methods.contract.base import Clients


def exchange_table(clients: Clients) -> DataFrame:
    """Return columns sample (its index in the training set), from, to (client ids) and round, a row a pulled sample.

    Args:
        clients: with their memories and inboxes after the last round: samples in the inbox count too.
    """
    rows = []
    for client in clients:
        memory = dict(client.memory)
        read_inbox(client, memory)
        for sample, sender, round in memory.get("received", torch.zeros(0, 3)).tolist():
            rows.append((int(sample), int(sender), client.id, int(round)))
    return DataFrame(rows, columns=["sample", "from", "to", "round"])
