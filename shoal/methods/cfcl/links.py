"""The links of CF-CL's graph: which there are, and which carry something at a local step."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from shoal.data.topology import Edges, check_edges, neighbours, random_geometric_graph
from shoal.methods.cfcl.state import CFCLState
from shoal.methods.contract.context import MethodError


def build_graph(devices: int, edges: Sequence[tuple[int, int]], degree: float, rng: np.random.Generator) -> Edges:
    """The links (i, j), i < j: the given ones, or a random geometric graph's.

    Args:
        devices: how many there are.
        edges: given links; empty: draw them.
        degree: wanted average degree of a drawn graph; at most all others.
        rng: draws the graph.

    Raises:
        DataError: a graph that cannot be.
    """
    if edges:
        return check_edges(devices, edges)
    if devices == 1:
        return ()
    return random_geometric_graph(devices, min(degree, devices - 1), rng)


def check_failed(failed: Sequence[Sequence[int]]) -> None:
    """Refuse entries that are no failure of a link.

    Raises:
        MethodError: an entry is not (i, j), (i, j, from) or (i, j, from, to).
    """
    for link in failed:
        if not 2 <= len(link) <= 4:
            raise MethodError(f"method.failed names {list(link)}: expected [i, j], [i, j, from] or [i, j, from, to]")


def live_links(edges: Edges, failed: Sequence[Sequence[int]], step: int) -> Edges:
    """The links that carry something at a local step.

    Args:
        edges: the links (i, j) with i < j.
        failed: (i, j), (i, j, from local step), or (i, j, from, to) without the last.
        step: the local step.
    """
    dead = set()
    for i, j, *when in failed:
        start, end = when[0] if when else 0, when[1] if len(when) > 1 else math.inf
        if start <= step < end:
            dead.add((min(i, j), max(i, j)))
    return tuple(edge for edge in edges if edge not in dead)


def live_neighbours(state: CFCLState, failed: Sequence[Sequence[int]], device: int) -> tuple[int, ...]:
    """The neighbours that a device can send something to in the next round."""
    return tuple(neighbours(state.clients, live_links(state.edges, failed, state.step))[device])
