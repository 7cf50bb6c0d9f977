"""`init: kfed`: UIFCA begins with k-FED's assignment, in one round before the first cluster round.

A client keeps the local cluster of each point in its memory (`local`); the server tells each client which of its own
clusters each local one belongs to (`labels/I`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from torch import Tensor

from shoal.core.streams import Streams
from shoal.methods.contract.base import Client, Server, Update
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.uifca.kfed import gather_centres, local_centres
from shoal.methods.uifca.state import UIFCAState

MIN_POINTS = 2
"""A centre is the mean of so many points at least."""


def send_centres(client: Client, clusters: int, min_points: int) -> Update:
    """Send a client's local centres, each of `min_points` points or more; the client keeps its local clusters.

    Raises:
        ClientError: the client has fewer than `min_points` points, or values that are not finite.
    """
    centres, local = local_centres(client, clusters, min_points)
    return Update(Message({"centres": centres}), memory={"local": local})


def labels_of(updates: Iterable[Update], clusters: int, seed: int) -> Tensors:
    """Cluster all local centres: `labels/I` holds a cluster for each local cluster of client I, int64."""
    _, labels = gather_centres(updates, clusters, Streams(seed).numpy("kfed server"))
    return labels


def cluster_centres(server: Server, updates: Iterable[Update], clusters: int, seed: int) -> Server:
    """Cluster all local centres on the server; the next round learns from this assignment."""
    labels = labels_of(updates, clusters, seed)
    facts = replace(UIFCAState.from_server(server), phase="learn").facts()
    return server.next(server.model, state={**server.state, **labels}, facts=facts)


def kfed_assignment(message: Message, client: Client) -> Tensor | None:
    """Return the cluster of each point by k-FED, int64 (n,); None where the client took no part in it."""
    if "labels" in message.tensors and "local" in client.memory:
        return message.tensors["labels"][client.memory["local"]]
    return None
