"""Each client's latest transmitted update, where not all take part in a round (section III).

The server then keeps in its state the last update of a client since its cluster was born: `latest/CLIENT/update`, and
the number of its samples, `latest/CLIENT/n`. A client that has sent nothing since then delays the split of its cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from shoal.methods.contract.base import Update
from shoal.methods.contract.message import Message, Tensors


def remember(tensors: Tensors, updates: Mapping[int, Update]) -> None:
    """Store the updates of these clients in place of their earlier ones."""
    for client, update in updates.items():
        tensors[f"latest/{client}/update"] = update.message.tensors["update"]
        tensors[f"latest/{client}/n"] = torch.tensor([update.message.facts["n"]], dtype=torch.float64)


def recall(tensors: Tensors, clients: Iterable[int]) -> dict[int, Update]:
    """Return the latest update of each of some clients; clients without one are left out."""
    return {
        client: Update(
            Message({"update": tensors[f"latest/{client}/update"]}, {"n": float(tensors[f"latest/{client}/n"])}),
            client=client,
        )
        for client in clients
        if f"latest/{client}/n" in tensors
    }


def forget(tensors: Tensors, clients: Iterable[int]) -> None:
    """Drop the stored updates of some clients."""
    for client in clients:
        for name in ("update", "n"):
            tensors.pop(f"latest/{client}/{name}", None)
