"""Figures of CFL runs: the tree, the similarity matrices of its splits, clusters and norms over rounds."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from engine.checkpoint import newest_valid
from engine.client_names import client_names, named
from engine.run_folder import RunFolder
from methods.cfl.tree import Node, Tree

NAMED = 8
"""Clients of a leaf that are named, at most."""


def draw_cfl(run: RunFolder) -> list[Path]:
    """All figures of a CFL run, into its figures folder."""
    checkpoint = newest_valid(run)
    if checkpoint is None or not checkpoint.server.round:
        return []
    server = checkpoint.server
    tree, truth = Tree.of(server.facts), server.facts["truth"]
    names = client_names(run)
    metric = "perplexity" if "perplexity" in run.table("rounds") else "acc"
    drawn = [
        draw_tree(tree, truth, run.figures / "tree.png", names),
        draw_clusters(run, metric, run.figures / "clusters.png"),
        draw_norms(run, run.figures / "norms.png"),
    ]
    for node in tree.nodes:
        if node.children:
            alpha = server.tensors[f"similarity/{node.id}"].cpu().numpy()
            path = run.figures / f"similarity-{node.id}.png"
            drawn.append(draw_similarity(tree, node, alpha, truth, path, names))
    return drawn


def draw_tree(tree: Tree, truth: list[int], path: Path, names: Sequence[str] = ()) -> Path:
    """The tree of clusters: rounds of splits, the clients of its leaves, and the planted groups inside each."""
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

    width = place(0, 0, 0.0)
    depth = max(-y for _, y in places.values())
    figure = Figure(figsize=(max(4.0, 1.9 * width), 1.5 + 1.2 * depth), layout="constrained")
    axes = figure.subplots()
    for node in tree.nodes:
        x, y = places[node.id]
        if node.parent is not None:
            up = places[node.parent]
            axes.plot([up[0], x], [up[1], y], color="grey", linewidth=1, zorder=1)
        text = f"cluster {node.id}: {len(node.clients)} clients"
        if truth and node.clients:
            counts = np.bincount([truth[c] for c in node.clients])
            text += "\ngroups " + ", ".join(f"{g} ({n})" for g, n in enumerate(counts) if n)
        if node.clients and not node.children and names:
            listed = [named(names, client) for client in node.clients[:NAMED]]
            rest = len(node.clients) - len(listed)
            listed += [f"and {rest} more"] * bool(rest)
            text += "\n" + textwrap.fill(", ".join(listed), 26)
        if node.split is not None:
            text += f"\nsplit in round {node.split}"
        box = {"boxstyle": "round", "facecolor": "white" if node.children else "honeydew", "edgecolor": "grey"}
        axes.text(x, y, text, ha="center", va="center", fontsize="small", bbox=box, zorder=2)
    axes.set(xlim=(-0.2, width + 0.2), ylim=(-depth - 0.5, 0.5))
    axes.axis("off")
    return _save(figure, path)


def draw_similarity(
    tree: Tree, node: Node, alpha: np.ndarray, truth: list[int], path: Path, names: Sequence[str] = ()
) -> Path:
    """The similarity matrix on which a cluster was split, ordered by the two groups, planted groups named."""
    founders = [client for child in node.children for client in tree.nodes[child].founders]
    inside = sorted(founders)
    # Rows of the stored matrix are in order of client id.
    order = [
        inside.index(c) for c in sorted(founders, key=lambda c: (_side(tree, node, c), truth[c] if truth else 0, c))
    ]
    figure = Figure(figsize=(5, 4.2), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(alpha[np.ix_(order, order)], vmin=-1, vmax=1, cmap="RdBu_r")
    ticks = [named(names, inside[i]) + (f" ({truth[inside[i]]})" if truth else "") for i in order]
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
    return _save(figure, path)


def _side(tree: Tree, node: Node, client: int) -> int:
    return int(client in tree.nodes[node.children[1]].founders)


def draw_clusters(run: RunFolder, metric: str, path: Path) -> Path:
    """A metric of every cluster of one run over rounds, with marks where clusters were split."""
    table = run.table("rounds")
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name in [str(c) for c in table if str(c).startswith(f"{metric}/")]:
        points = table[["round", name]].dropna()
        axes.plot(points["round"], points[name], marker=".", label=f"cluster {name.split('/')[1]}")
    counts = table[["round", "clusters"]].dropna()
    for round in counts["round"][counts["clusters"].diff() > 0]:
        axes.axvline(round, color="grey", linestyle=":", linewidth=1)
    axes.set(xlabel="communication round", ylabel=f"{metric}, over the cluster's clients")
    return _finish(figure, path)


def draw_norms(run: RunFolder, path: Path) -> Path:
    """Norms of each cluster's mean update and largest client update over rounds; eps1 and eps2 where they count."""
    table = run.table("rounds")
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name in [str(c) for c in table if str(c).startswith("mean_norm/")]:
        cluster = name.split("/")[1]
        points = table[["round", name, f"max_norm/{cluster}"]].dropna()
        (line,) = axes.plot(points["round"], points[f"max_norm/{cluster}"], label=f"cluster {cluster}, largest client")
        axes.plot(points["round"], points[name], "--", color=line.get_color(), label=f"cluster {cluster}, mean")
    method = run.settings().method
    if method.criterion == "absolute":
        axes.axhline(method.eps1, color="black", linestyle="--", linewidth=0.8, label="eps1")
        axes.axhline(method.eps2, color="black", linewidth=0.8, label="eps2")
    axes.set(xlabel="communication round", ylabel="norm of the update", yscale="log")
    return _finish(figure, path)


def _finish(figure: Figure, path: Path) -> Path:
    (axes,) = figure.axes
    axes.legend(fontsize="x-small", ncols=2)
    axes.grid(alpha=0.3)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return _save(figure, path)


def _save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return path
