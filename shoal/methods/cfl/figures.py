"""Figures of CFL runs: the tree, and the similarity matrices of its splits."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from shoal.methods.cfl.state import CFLState
from shoal.methods.cfl.tree import Node, Tree
from shoal.methods.contract.base import Server

MAX_NAMED_CLIENTS = 8
"""Largest number of a leaf's clients whose names are shown."""


def figures(server: Server, names: Sequence[str]) -> dict[str, Figure]:
    """Draw all figures of a CFL run, by name."""
    if not server.round:
        return {}
    state = CFLState.from_server(server)
    drawn = {"tree": tree_figure(state.tree, state.truth, names)}
    for node in state.tree.nodes:
        if node.children:
            alpha = server.state[f"similarity/{node.id}"].cpu().numpy()
            drawn[f"similarity-{node.id}"] = similarity_figure(state.tree, node, alpha, state.truth, names)
    return drawn


def tree_figure(tree: Tree, truth: Sequence[int], names: Sequence[str] = ()) -> Figure:
    """Draw the tree of clusters: rounds of splits, the clients of its leaves, and the planted groups inside each."""
    places = node_places(tree)
    width = len(tree.leaves())
    depth = max(-y for _, y in places.values())
    figure = Figure(figsize=(max(4.0, 1.9 * width), 1.5 + 1.2 * depth), layout="constrained")
    axes = figure.subplots()
    for node in tree.nodes:
        x, y = places[node.id]
        if node.parent is not None:
            up = places[node.parent]
            axes.plot([up[0], x], [up[1], y], color="grey", linewidth=1, zorder=1)
        box = {"boxstyle": "round", "facecolor": "white" if node.children else "honeydew", "edgecolor": "grey"}
        text = node_text(node, truth, names)
        axes.text(x, y, text, ha="center", va="center", fontsize="small", bbox=box, zorder=2)
    axes.set(xlim=(-0.2, width + 0.2), ylim=(-depth - 0.5, 0.5))
    axes.axis("off")
    return figure


def node_places(tree: Tree) -> dict[int, tuple[float, float]]:
    """Return where each node is drawn: leaves side by side, parents above the middle of their children."""
    leaves = sorted(tree.leaves(), key=lambda leaf: tree.path(leaf.id))
    across = {leaf.id: place + 0.5 for place, leaf in enumerate(leaves)}
    for node in reversed(tree.nodes):
        if node.children:
            across[node.id] = sum(across[child] for child in node.children) / len(node.children)
    return {node.id: (across[node.id], 1 - len(tree.path(node.id))) for node in tree.nodes}


def node_text(node: Node, truth: Sequence[int], names: Sequence[str]) -> str:
    """Return the text of a node: its clients, their planted groups and names, and the round of its split."""
    lines = [f"cluster {node.id}: {len(node.clients)} clients"]
    if truth and node.clients:
        counts = np.bincount([truth[client] for client in node.clients])
        lines.append("groups " + ", ".join(f"{group} ({number})" for group, number in enumerate(counts) if number))
    if node.clients and not node.children and names:
        listed = [_client_name(names, client) for client in node.clients[:MAX_NAMED_CLIENTS]]
        if len(node.clients) > len(listed):
            listed.append(f"and {len(node.clients) - len(listed)} more")
        lines.append(textwrap.fill(", ".join(listed), 26))
    if node.split is not None:
        lines.append(f"split in round {node.split}")
    return "\n".join(lines)


def similarity_figure(
    tree: Tree, node: Node, alpha: np.ndarray, truth: Sequence[int], names: Sequence[str] = ()
) -> Figure:
    """Draw the similarity matrix (n, n) on which a cluster was split, in order of its two groups and planted groups."""
    founders = [client for child in node.children for client in tree.nodes[child].founders]
    inside = sorted(founders)

    def rank(client: int) -> tuple[bool, int, int]:
        return client in tree.nodes[node.children[1]].founders, truth[client] if truth else 0, client

    # Rows of the stored matrix are in order of client id.
    order = [inside.index(client) for client in sorted(founders, key=rank)]
    figure = Figure(figsize=(5, 4.2), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(alpha[np.ix_(order, order)], vmin=-1, vmax=1, cmap="RdBu_r")
    ticks = [_client_name(names, inside[i]) for i in order]
    if truth:
        ticks = [f"{tick} ({truth[inside[i]]})" for tick, i in zip(ticks, order, strict=True)]
    if len(ticks) <= 50:
        axes.set_xticks(range(len(ticks)), ticks, rotation=90, fontsize="x-small")
        axes.set_yticks(range(len(ticks)), ticks, fontsize="x-small")
    cut = len(tree.nodes[node.children[0]].founders) - 0.5
    axes.axhline(cut, color="black", linewidth=1)
    axes.axvline(cut, color="black", linewidth=1)
    axes.set_title(
        f"cluster {node.id}, split in round {node.split}: client" + (" (planted group)" if truth else ""),
        fontsize="small",
    )
    figure.colorbar(image, ax=axes, label="cosine of updates")
    return figure


def _client_name(names: Sequence[str], client: int) -> str:
    """Return the name of a client, or its number where the list is shorter."""
    return names[client] if client < len(names) else str(client)
