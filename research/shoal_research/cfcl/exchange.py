"""The table of a CF-CL run's exchange: who was sent whose samples."""

from __future__ import annotations

import torch
from pandas import DataFrame

from shoal.engine.store.kept_state import read_state
from shoal.engine.store.opened_run import OpenedClients, OpenedRun
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.cfcl.memory import read_inbox


def exchange_table(run: RunFolder) -> DataFrame:
    """Return columns sample (its index in the training set), from, to (client ids) and round, a row a pulled sample."""
    checkpoint = read_state(run)
    rows = []
    for client in OpenedClients(OpenedRun(run), checkpoint.server.round, checkpoint.memory_index.clients()):
        memory = dict(client.memory)
        read_inbox(client, memory)  # after the last round, samples in the inbox count too
        for sample, sender, round in memory.get("received", torch.zeros(0, 3)).tolist():
            rows.append((int(sample), int(sender), client.id, int(round)))
    return DataFrame(rows, columns=["sample", "from", "to", "round"])
