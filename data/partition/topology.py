"""Undirected graphs of devices that can talk to each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from shoal.core.errors import DataError

Edges = tuple[tuple[int, int], ...]
_MAX_REDRAWS = 1000


def random_geometric_graph(nodes: int, degree: float, rng: np.random.Generator) -> Edges:
    """Draw a connected graph of points in the unit square, in which the nearest pairs are joined.

    The radius is the length of the last edge that is needed, so that the average degree is `degree` up to rounding.
    Points are drawn again until the graph is connected.

    Args:
        nodes: at least 2.
        degree: wanted average degree, from 1 to nodes - 1.
        rng: draws the points.

    Returns:
        Edges (i, j), i < j, ascending.

    Raises:
        DataError: no connected graph of so many nodes has this degree, or none was found.
    """
    if nodes < 2 or not 0 < degree <= nodes - 1:
        raise DataError(f"average degree {degree} of {nodes} devices: expected above 0 and at most {nodes - 1}")
    count = round(nodes * degree / 2)
    if count < nodes - 1:
        raise DataError(
            f"average degree {degree} gives {count} links, and {nodes} devices need {nodes - 1} to be connected: "
            "raise it"
        )
    first, second = np.triu_indices(nodes, 1)
    for _ in range(_MAX_REDRAWS):
        points = rng.random((nodes, 2))
        nearest = np.argsort(np.linalg.norm(points[first] - points[second], axis=1), kind="stable")[:count]
        edges = tuple(sorted((int(first[e]), int(second[e])) for e in nearest))
        if connected(nodes, edges):
            return edges
    raise DataError(
        f"no connected graph of {nodes} devices with average degree {degree} in {_MAX_REDRAWS} draws: raise it"
    )


def connected(nodes: int, edges: Iterable[Sequence[int]]) -> bool:
    """Return whether every node can be reached from every other."""
    from scipy.sparse import coo_array  # here: it takes long to import, and few runs draw a graph
    from scipy.sparse.csgraph import connected_components

    ends = np.array(list(edges), dtype=np.int64).reshape(-1, 2)
    graph = coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(nodes, nodes))
    return bool(connected_components(graph, directed=False, return_labels=False) == 1)


def check_edges(nodes: int, edges: Iterable[Sequence[int]]) -> Edges:
    """Return edges in order, each once, between devices that exist.

    Raises:
        DataError: an edge is wrong (it is named), or the graph is not connected.
    """
    distinct = set()
    for edge in edges:
        if len(edge) != 2:
            raise DataError(f"link {list(edge)}: expected two device numbers")
        i, j = sorted(int(end) for end in edge)
        if not 0 <= i < j < nodes:
            raise DataError(f"link {list(edge)}: expected two different devices from 0 to {nodes - 1}")
        distinct.add((i, j))
    ordered = tuple(sorted(distinct))
    if not connected(nodes, ordered):
        raise DataError(f"the graph of {len(ordered)} links does not connect all {nodes} devices")
    return ordered


def neighbours(nodes: int, edges: Iterable[Sequence[int]]) -> list[list[int]]:
    """Return the neighbours of each node, ascending."""
    by_node: list[set[int]] = [set() for _ in range(nodes)]
    for i, j in edges:
        by_node[i].add(j)
        by_node[j].add(i)
    return [sorted(near) for near in by_node]
