"""Which clients are present in a round: clients can join late and can leave (section V-C)."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.methods.cfl.tree import Tree
from shoal.methods.contract.context import MethodError


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

    def update(self, tree: Tree, clients: int, round: int) -> None:
        """Remove clients that have left by this round from the tree, and put those that have joined at its root."""
        members = {client for node in tree.leaves() for client in node.clients} | tree.walking.keys()
        for client in range(clients):
            if client in members and not self.present(client, round):
                tree.leave(client)
            elif client not in members and self.present(client, round):
                tree.join(client)
