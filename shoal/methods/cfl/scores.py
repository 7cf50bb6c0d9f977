"""Scores of CFL's clusters: for the clients, and against planted groups."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from shoal.methods.cfl.supervised import Score
from shoal.methods.cfl.tree import Tree
from shoal.methods.scores.clustering import ari

PathScores = Mapping[int, Mapping[int, tuple[Score, Score]]]
"""Scores of every node on a client's path, from the root, on two halves of its validation samples: by client and node.
Only clients with a choice of models are in it."""


def path_metrics(own: Mapping[int, Score], paths: PathScores) -> dict[str, float]:
    """Return what clients gain that may choose any model on their paths from the root to their clusters.

    A client chooses by one half of its validation samples and is judged on the other, and the other way round: judged
    on the samples of its choice, it could only gain.

    Args:
        own: the score of each client's own cluster.
        paths: of each client with a choice.

    Returns:
        `acc_best`: mean accuracy with the chosen model; `acc_root`: with the root's (the federated model before any
        split, once there was one); `below_root`: clients whose chosen model is worse than the root's.
    """
    best = []
    root = []
    for client, score in own.items():
        if client not in paths:
            best.append(score.accuracy)
            root.append(score.accuracy)
            continue
        path = paths[client]
        best.append(sum(path[choice(path, by)][1 - by].correct for by in (0, 1)) / score.number)
        root.append(sum(half.correct for half in next(iter(path.values()))) / score.number)
    return {
        "acc_best": sum(best) / len(best),
        "acc_root": sum(root) / len(root),
        "below_root": float(sum(b < r for b, r in zip(best, root, strict=True))),
    }


def choice(path: Mapping[int, tuple[Score, Score]], by: int) -> int:
    """Return the node of a path, root first, with the best accuracy on half `by` (0 or 1).

    Among equally good nodes, or where the half is empty, it is the one nearest to the client's own cluster.
    """
    nodes = list(path)
    return max(nodes, key=lambda node: (path[node][by].correct, nodes.index(node)))


def leaf_metrics(tree: Tree, own: Mapping[int, Score], text: bool) -> dict[str, float]:
    """Return the mean accuracy in each cluster of clients with its model (`own`); of texts also its perplexity."""
    metrics = {"clusters": float(len(tree.leaves()))}
    for leaf in tree.leaves():
        inside = [own[client] for client in leaf.clients if client in own]
        if inside:
            metrics[f"acc/{leaf.id}"] = sum(score.accuracy for score in inside) / len(inside)
            if text:
                loss = sum(score.loss for score in inside) / sum(score.number for score in inside)
                metrics[f"perplexity/{leaf.id}"] = math.exp(min(loss, 50.0))
    return metrics


def measured_metrics(log: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return norms, similarities and gaps of each cluster, and the largest gap of each kind."""
    metrics: dict[str, float] = {}
    for measure in log:
        for key, value in measure.items():
            if key in ("node", "median_norm"):
                continue
            metrics[f"{key}/{measure['node']}"] = value
            if key.startswith("gap"):
                metrics[key] = max(value, metrics.get(key, value))
    return metrics


def group_metrics(tree: Tree, clients: Sequence[int], truth: Sequence[int]) -> dict[str, float]:
    """Compare the clusters of some clients with the planted groups.

    Args:
        tree: the clusters.
        clients: those that count.
        truth: the planted group of every client.

    Returns:
        `groups_ari`, and `groups_exact`: 1 where clusters and groups are the same.
    """
    groups = np.array([truth[client] for client in clients])
    cluster = np.array([tree.place(client).id for client in clients])
    agreement = ari(groups, cluster)
    return {"groups_ari": agreement, "groups_exact": float(agreement == 1)}
