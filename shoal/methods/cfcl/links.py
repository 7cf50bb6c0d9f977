"""The graph of CF-CL's devices: the links over which they send each other samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.data.partition.topology import Edges, check_edges, neighbours, random_geometric_graph
from shoal.methods.cfcl.state import CFCLState


def build_graph(devices: int, edges: Sequence[tuple[int, int]], degree: float, rng: np.random.Generator) -> Edges:
    """Return the links (i, j), i < j, of the settings, or those of a random geometric graph.

    Args:
        devices: number of devices.
        edges: the links of the settings; empty: draw them.
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


def device_neighbours(state: CFCLState, device: int) -> tuple[int, ...]:
    """Return the ids of a device's neighbours, ascending."""
    return tuple(neighbours(state.clients, state.edges)[device])
