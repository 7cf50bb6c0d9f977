"""Who is there in a round: clients that join late, and clients that leave (section V-C)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.methods.cfl.tree import Tree
from shoal.methods.contract.context import MethodError


@dataclass(frozen=True)
class Membership:
    """The rounds in which each client is there.

    Attributes:
        joins: (client, round): the first round of clients that come later; all others are there from the start.
        leaves: (client, round): the first round without this client.
    """

    joins: tuple[tuple[int, int], ...]
    leaves: tuple[tuple[int, int], ...]

    def check(self, clients: int) -> None:
        """Refuse clients that do not exist.

        Raises:
            MethodError: names the first of them.
        """
        for client, _ in (*self.joins, *self.leaves):
            if not 0 <= client < clients:
                raise MethodError(f"method.joins and method.leaves name client {client}, which does not exist")

    def present(self, client: int, round: int) -> bool:
        """Whether a client is there in a round."""
        return dict(self.joins).get(client, 1) <= round < dict(self.leaves).get(client, math.inf)

    def founders(self, clients: int) -> list[int]:
        """The clients of the first cluster: all that are there from the start."""
        late = dict(self.joins)
        return [client for client in range(clients) if late.get(client, 1) <= 1]

    def late(self, clients: Sequence[int]) -> list[int]:
        """Those of some clients that came later."""
        joined = dict(self.joins)
        return [client for client in clients if joined.get(client, 1) > 1]

    def update(self, tree: Tree, clients: int, round: int) -> None:
        """Take clients that have left in this round out of the tree, and put those that have joined at its root."""
        members = [node.clients for node in tree.leaves()]
        for client in range(clients):
            known = client in tree.walking or any(client in group for group in members)
            if known and not self.present(client, round):
                tree.leave(client)
            elif not known and self.present(client, round):
                tree.join(client)
