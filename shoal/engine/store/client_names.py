"""The names of a run's clients."""

from __future__ import annotations

import json
from collections.abc import Sequence

from shoal.core.seal import unsealed
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.registry import METHODS


def client_names(run: RunFolder, numbered: str = "{}") -> list[str]:
    """Return the name of each client of a run, in the order of their ids.

    Args:
        run: the run's folder.
        numbered: format of the name of a client that has only an id.

    Returns:
        The names of the data's own clients if the partition follows them, else names made from the ids. If the
        partition is missing or has changed, the names are made from the ids too. A method that pools all samples has
        one client, `all clients`.
    """
    if METHODS[run.settings().method.name].pooled:
        return ["all clients"]
    try:
        record = unsealed(json.loads((run.folder_of("partition") / "partition.json").read_text()))
    except (OSError, ValueError):
        record = {}
    if record.get("digest") == run.lineage().partition.digest:
        names = [str(name) for name in record["client_names"]]
        return names or [numbered.format(client) for client in range(record["clients"])]
    clients = run.table("clients")
    if not len(clients):
        return []
    return [numbered.format(client) for client in range(int(clients["client"].max()) + 1)]


def named(names: Sequence[str], client: int) -> str:
    """Return the name of a client, or its id if the list is shorter."""
    if client < len(names):
        return names[client]
    return str(client)
