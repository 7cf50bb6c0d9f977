"""The parameter tree of clustered federated learning: the clusters, their clients and their splits.

The tree is JSON in the server's facts. Its vectors are tensors by name: `node/V` holds the weights of node V, which are
stationary once it has children; `edge/V` the updates of V's clients when their parent was split, (clients, p); and
`similarity/V` the matrix on which V was split. Clients have their ids in the federation everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
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
        clients: the clients in it; for an inner node those at its split.
        founders: the clients of the rows of `edge/id`; empty for the root.
        born, split: rounds; `split` is None for a leaf.
        calm: number of rounds in a row for which the relative criterion has held.
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
    """All nodes by id."""

    nodes: list[Node]

    @classmethod
    def start(cls, clients: Sequence[int]) -> Tree:
        """Return a tree with one cluster of all clients."""
        return cls([Node(0, clients=tuple(clients))])

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Tree:
        """Read the tree from a server's facts."""
        nodes = []
        for entry in facts["nodes"]:
            members = {key: tuple(entry[key]) for key in ("children", "clients", "founders")}
            nodes.append(Node(**{**entry, **members}))
        return cls(nodes)

    def facts(self) -> dict[str, Any]:
        """Return the tree as JSON values."""
        return {"nodes": [asdict(node) for node in self.nodes]}

    def leaves(self) -> list[Node]:
        """Return the present clusters by id."""
        return [node for node in self.nodes if not node.children]

    def place(self, client: int) -> Node:
        """Return the leaf of a client.

        Raises:
            MethodError: the client is in no cluster.
        """
        for leaf in self.leaves():
            if client in leaf.clients:
                return leaf
        raise MethodError(f"client {client} is in no cluster")

    def path(self, node: int) -> list[int]:
        """Return the nodes from the root to a node, both included."""
        path = [node]
        while (parent := self.nodes[path[-1]].parent) is not None:
            path.append(parent)
        return path[::-1]

    def change(self, node: int, **values: Any) -> None:
        """Replace a node's fields."""
        self.nodes[node] = replace(self.nodes[node], **values)

    def split(self, node: int, groups: Sequence[Sequence[int]], round: int) -> tuple[int, int]:
        """Give a leaf two children with these clients, and return their ids."""
        children = []
        for group in groups:
            child = Node(len(self.nodes), node, clients=tuple(group), founders=tuple(group), born=round)
            self.nodes.append(child)
            children.append(child.id)
        self.change(node, children=tuple(children), split=round)
        return children[0], children[1]


def branch_similarities(tree: Tree, tensors: Tensors, node: int, update: Tensor, size: int) -> dict[int, float]:
    """Return the largest cosine of an update with the cached updates of each child (algorithm 4, lines 6 and 7).

    Args:
        tree: the tree.
        tensors: with `edge/V` for the children V, (clients, p).
        node: an inner node.
        update: the new client's update from the node's weights, (p,).
        size: how many of the p numbers are parameters: the rest are statistics of layers.
    """
    vector = update[:size].double()
    similarities = {}
    for child in tree.nodes[node].children:
        cached = tensors[f"edge/{child}"][:, :size].double()
        cosines = (cached @ vector) / (cached.norm(dim=1) * vector.norm()).clamp(min=1e-300)
        similarities[child] = float(cosines.max())
    return similarities


def nearest_child(similarities: dict[int, float]) -> int:
    """Return the child with the larger similarity; the first where they are equal."""
    return max(similarities, key=lambda child: (similarities[child], -child))
