"""Figures of CFL runs: the tree, the similarity matrices of its splits, clusters and norms over rounds."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame

from shoal.methods.cfl.state import CFLState
from shoal.methods.cfl.tree import Node, Tree
from shoal.methods.contract.base import RunHistory

MAX_NAMED_CLIENTS = 8
"""Largest number of a leaf's clients whose names are shown."""


def figures(history: RunHistory, eps: tuple[float, float] | None) -> dict[str, Figure]:
    """Draw all figures of a CFL run, by name.

    Args:
        history: of the run.
        eps: eps1 and eps2, where they decide splits; else None.
    """
    server = history.server
    if server is None or not server.round:
        return {}
    state = CFLState.from_server(server)
    tree = state.tree
    truth = state.truth
    names = history.client_names
    metric = "perplexity" if "perplexity" in history.rounds else "acc"
    drawn = {
        "tree": tree_figure(tree, truth, names),
        "clusters": clusters_figure(history.rounds, metric),
        "norms": norms_figure(history.rounds, eps),
    }
    for node in tree.nodes:
        if node.children:
            alpha = server.state[f"similarity/{node.id}"].cpu().numpy()
            drawn[f"similarity-{node.id}"] = similarity_figure(tree, node, alpha, truth, names)
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
    places: dict[int, tuple[float, float]] = {}

    def place(node: int, depth: int, left: float) -> float:
        children = tree.nodes[node].children
        if not children:
            places[node] = (left + 0.5, -depth)
            return left + 1
        edge = left
        for child in children:
            edge = place(child, depth + 1, edge)
        places[node] = (sum(places[c][0] for c in children) / len(children), -depth)
        return edge

    place(0, 0, 0.0)
    return places


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


def clusters_figure(rounds: DataFrame, metric: str) -> Figure:
    """Draw a metric of every cluster of one run over rounds, with marks where clusters were split."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name in [str(c) for c in rounds if str(c).startswith(f"{metric}/")]:
        points = rounds[["round", name]].dropna()
        axes.plot(points["round"], points[name], marker=".", label=f"cluster {name.split('/')[1]}")
    counts = rounds[["round", "clusters"]].dropna()
    for round in counts["round"][counts["clusters"].diff() > 0]:
        axes.axvline(round, color="grey", linestyle=":", linewidth=1)
    axes.set(xlabel="communication round", ylabel=f"{metric}, over the cluster's clients")
    return _finish(figure)


def norms_figure(rounds: DataFrame, eps: tuple[float, float] | None) -> Figure:
    """Draw the norms of each cluster's mean and largest client update over rounds, and eps1 and eps2 unless None."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name in [str(c) for c in rounds if str(c).startswith("mean_norm/")]:
        cluster = name.split("/")[1]
        points = rounds[["round", name, f"max_norm/{cluster}"]].dropna()
        (line,) = axes.plot(points["round"], points[f"max_norm/{cluster}"], label=f"cluster {cluster}, largest client")
        axes.plot(points["round"], points[name], "--", color=line.get_color(), label=f"cluster {cluster}, mean")
    if eps is not None:
        axes.axhline(eps[0], color="black", linestyle="--", linewidth=0.8, label="eps1")
        axes.axhline(eps[1], color="black", linewidth=0.8, label="eps2")
    axes.set(xlabel="communication round", ylabel="norm of the update", yscale="log")
    return _finish(figure)


def _finish(figure: Figure) -> Figure:
    (axes,) = figure.axes
    axes.legend(fontsize="x-small", ncols=2)
    axes.grid(alpha=0.3)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure
