"""Each client's latest transmitted update, where not all take part in a round (section III).

The server then keeps in its state the last update of a client since its cluster was born: `latest/CLIENT/NAME`, one
vector a client, and one more where full gradients travel. A client that has sent nothing since then delays the split of
its cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from shoal.methods.contract.base import Update
from shoal.methods.contract.message import Message, Tensors

PREFIX = "latest/"
FACTS = ("n", "gamma")
"""Facts of a message that the server keeps beside its tensors."""


def remember(tensors: Tensors, updates: Mapping[int, Update]) -> None:
    """Store the updates of these clients in place of their earlier ones."""
    for client, update in updates.items():
        forget(tensors, [client])
        message = update.message
        numbers = {k: torch.tensor([message.facts[k]], dtype=torch.float64) for k in FACTS if k in message.facts}
        for name, tensor in {**message.tensors, **numbers}.items():
            tensors[f"{PREFIX}{client}/{name}"] = tensor


def recall(tensors: Tensors, clients: Iterable[int]) -> dict[int, Update]:
    """Return the latest update of each of some clients; clients without one are left out."""
    wanted = set(clients)
    found: dict[int, Tensors] = {}
    for key, tensor in tensors.items():
        if key.startswith(PREFIX):
            client, name = key.removeprefix(PREFIX).split("/")
            if int(client) in wanted:
                found.setdefault(int(client), {})[name] = tensor
    return {client: _update(client, parts) for client, parts in sorted(found.items())}


def _update(client: int, parts: Tensors) -> Update:
    facts = {name: float(parts[name]) for name in FACTS if name in parts}
    return Update(Message({k: v for k, v in parts.items() if k not in FACTS}, facts), client=client)


def forget(tensors: Tensors, clients: Iterable[int]) -> None:
    """Drop the stored updates of some clients."""
    prefixes = tuple(f"{PREFIX}{client}/" for client in clients)
    for key in [key for key in tensors if key.startswith(prefixes)]:
        del tensors[key]


def stored_clients(tensors: Tensors) -> set[int]:
    """Return the clients with a stored update."""
    return {int(key.removeprefix(PREFIX).split("/")[0]) for key in tensors if key.startswith(PREFIX)}
