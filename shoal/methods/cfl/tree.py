"""The parameter tree of clustered federated learning: who is in which cluster, and how it came to be.

The tree is JSON in the server's facts, its vectors are tensors by name: `node/V` the weights of node V (stationary
ones, once it has children), `edge/V` the updates of V's clients at the moment their parent was split, (clients, p),
`similarity/V` the matrix on which V was split. Clients are global ids everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import Tensor

from shoal.methods.contract.context import MethodError
from shoal.methods.contract.message import Tensors


@dataclass(frozen=True)
class Node:
    """One cluster.

    Attributes:
        id: its number; 0 is the root.
        parent: None for the root.
        children: empty for a leaf, else two.
        clients: who is in it (of an inner node: who was when it was split).
        founders: whose updates `edge/id` holds, row by row; empty for the root.
        born, split: rounds; `split` is None for a leaf.
        calm: how many rounds in a row the relative criterion has held.
    """

    id: int
    parent: int | None = None
    children: tuple[int, ...] = ()
    clients: tuple[int, ...] = ()
    founders: tuple[int, ...] = ()
    born: int = 0
    split: int | None = None
    calm: int = 0


@dataclass
class Tree:
    """All nodes, by id, and the clients on their way from the root to a leaf."""

    nodes: list[Node]
    walking: dict[int, int] = field(default_factory=dict)

    @classmethod
    def start(cls, clients: Sequence[int]) -> Tree:
        """One cluster of all clients."""
        return cls([Node(0, clients=tuple(clients))])

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Tree:
        """The tree in a server's facts."""
        tuples = ("children", "clients", "founders")
        plain: list[dict[str, Any]] = [
            {k: tuple(v) if k in tuples else v for k, v in node.items()} for node in facts["nodes"]
        ]
        nodes = [Node(**node) for node in plain]
        return cls(nodes, {int(client): node for client, node in facts["walking"]})

    def facts(self) -> dict[str, Any]:
        """The tree as JSON values."""
        return {"nodes": [asdict(node) for node in self.nodes], "walking": sorted(map(list, self.walking.items()))}

    def leaves(self) -> list[Node]:
        """The clusters of now, by id."""
        return [node for node in self.nodes if not node.children]

    def place(self, client: int) -> Node:
        """The leaf of a client, or the inner node where it stands on its way down.

        Raises:
            MethodError: the client is in no cluster.
        """
        if client in self.walking:
            return self.nodes[self.walking[client]]
        for leaf in self.leaves():
            if client in leaf.clients:
                return leaf
        raise MethodError(f"client {client} is in no cluster: it has not joined, or has left")

    def path(self, node: int) -> list[int]:
        """From the root to a node, both included."""
        found = [node]
        while (parent := self.nodes[found[-1]].parent) is not None:
            found.append(parent)
        return found[::-1]

    def change(self, node: int, **values: Any) -> None:
        """Replace a node's fields."""
        self.nodes[node] = replace(self.nodes[node], **values)

    def split(self, node: int, groups: Sequence[Sequence[int]], round: int) -> tuple[int, int]:
        """Give a leaf two children with the given clients; returns their ids."""
        born = []
        for group in groups:
            child = Node(len(self.nodes), node, clients=tuple(group), founders=tuple(group), born=round)
            self.nodes.append(child)
            born.append(child.id)
        self.change(node, children=tuple(born), split=round)
        return born[0], born[1]

    def join(self, client: int) -> None:
        """A new client enters at the root: into the only cluster, or on its way down."""
        if self.nodes[0].children:
            self.walking[client] = 0
        else:
            self.change(0, clients=tuple(sorted({*self.nodes[0].clients, client})))

    def leave(self, client: int) -> None:
        """A client leaves its cluster; what the tree has cached of it stays."""
        self.walking.pop(client, None)
        for leaf in self.leaves():
            if client in leaf.clients:
                self.change(leaf.id, clients=tuple(c for c in leaf.clients if c != client))

    def step(self, client: int, child: int) -> None:
        """A client on its way goes on to a child; at a leaf it has arrived."""
        self.walking[client] = child
        if not self.nodes[child].children:
            del self.walking[client]
            self.change(child, clients=tuple(sorted({*self.nodes[child].clients, client})))


def branch_similarities(tree: Tree, tensors: Tensors, node: int, update: Tensor, size: int) -> dict[int, float]:
    """The largest cosine of an update with the cached updates of each child (algorithm 4, lines 6 and 7).

    Args:
        tree: the tree.
        tensors: with `edge/V` for the children V, (clients, p).
        node: an inner node.
        update: what the new client's training at the node's weights changed, (p,).
        size: how many of the p numbers are parameters: the rest are statistics of layers.
    """
    mine = update[:size].double()
    found = {}
    for child in tree.nodes[node].children:
        cached = tensors[f"edge/{child}"][:, :size].double()
        cosines = (cached @ mine) / (cached.norm(dim=1) * mine.norm()).clamp(min=1e-300)
        found[child] = float(cosines.max())
    return found


def nearest_child(similarities: dict[int, float]) -> int:
    """The child with the larger similarity; the first where they are equal."""
    return max(similarities, key=lambda child: (similarities[child], -child))
