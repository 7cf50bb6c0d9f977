"""Which clients are present in a round: clients can join late, walk down the tree, and leave (section V-C).

Clients on their walk from the root to a leaf are kept in the server's state: `walking`, int64 (w, 2), rows of client
and node.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shoal.methods.cfl.tree import Tree, branch_similarities, nearest_child
from shoal.methods.contract.base import Update
from shoal.methods.contract.context import MethodError
from shoal.methods.contract.message import Tensors

WALKING = "walking"


class Membership:
    """The rounds in which each client is present.

    Args:
        presence: (client, first round, end) of each client that is not always present; it is there before round `end`,
            with end 0 to the end of the run.
    """

    def __init__(self, presence: Sequence[tuple[int, int, int]]) -> None:
        self.first = {client: first for client, first, _ in presence}
        self.end = {client: end for client, _, end in presence if end}

    def check(self, clients: int) -> None:
        """Refuse clients that do not exist.

        Raises:
            MethodError: names the first such client.
        """
        for client in self.first:
            if not 0 <= client < clients:
                raise MethodError(
                    f"method.presence names client {client}, which does not exist: clients have the numbers 0 to "
                    f"{clients - 1}"
                )

    def present(self, client: int, round: int) -> bool:
        """Return whether a client is present in a round."""
        return round >= self.first.get(client, 1) and (client not in self.end or round < self.end[client])

    def founders(self, clients: int) -> list[int]:
        """Return the clients of the first cluster: all whose first round is the first of the run."""
        return [client for client in range(clients) if self.first.get(client, 1) <= 1]

    def late(self, clients: Sequence[int]) -> list[int]:
        """Return those of some clients that joined after the first round."""
        return [client for client in clients if self.first.get(client, 1) > 1]

    def update(self, tree: Tree, walking: dict[int, int], clients: int, round: int) -> None:
        """Remove clients that have left by this round from the tree, and put those that have joined at its root."""
        members = {client for node in tree.leaves() for client in node.clients} | walking.keys()
        for client in range(clients):
            if client in members and not self.present(client, round):
                walking.pop(client, None)
                leave(tree, client)
            elif client not in members and self.present(client, round):
                if tree.nodes[0].children:
                    walking[client] = 0
                else:
                    enter(tree, 0, client)


def enter(tree: Tree, leaf: int, client: int) -> None:
    """Put a client into a leaf."""
    tree.change(leaf, clients=tuple(sorted({*tree.nodes[leaf].clients, client})))


def leave(tree: Tree, client: int) -> None:
    """Remove a client from its cluster; its cached updates stay in the tree."""
    for leaf in tree.leaves():
        tree.change(leaf.id, clients=tuple(c for c in leaf.clients if c != client))


def walking_clients(state: Tensors) -> dict[int, int]:
    """Return the node of each client on its walk."""
    return dict(state[WALKING].tolist()) if WALKING in state else {}


def with_walking(kept: Tensors, walking: dict[int, int]) -> None:
    """Keep who walks."""
    kept.pop(WALKING, None)
    if walking:
        kept[WALKING] = torch.tensor(sorted(walking.items()))


def walk(tree: Tree, walking: dict[int, int], kept: Tensors, by_client: dict[int, Update], size: int) -> None:
    """Move clients that joined one level down the tree (algorithm 4); their updates count for no cluster yet."""
    for client in sorted(walking.keys() & by_client.keys()):
        update = by_client.pop(client).message.tensors["update"]
        child = nearest_child(branch_similarities(tree, kept, walking[client], update, size))
        walking[client] = child
        if not tree.nodes[child].children:
            del walking[client]
            enter(tree, child, client)


def enrolled_right(tree: Tree, client: int, truth: Sequence[int]) -> bool:
    """Return whether the founders of a client's cluster are of the client's own planted group."""
    founders = [node.founders for node in tree.leaves() if client in node.clients]
    return bool(founders and founders[0]) and all(truth[founder] == truth[client] for founder in founders[0])


def adversaries_apart(tree: Tree, honest: Sequence[int]) -> float:
    """Return 1 where no cluster holds both honest clients and adversaries, else 0."""
    mixed = any(len({client in honest for client in leaf.clients}) == 2 for leaf in tree.leaves())
    return float(not mixed)
