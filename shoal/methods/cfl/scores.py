"""Scores of CFL's clusters: for the clients, and against planted groups and adversaries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from shoal.methods.cfl.measure import ClusterMeasure
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


def measured_metrics(log: Sequence[ClusterMeasure]) -> dict[str, float]:
    """Return norms, similarities and gaps of each cluster, and the largest gap of each kind."""
    metrics: dict[str, float] = {}
    for measure in log:
        for key in ("mean_norm", "max_norm", "gamma", "cross", "gap", "gap_round", "gap_gradients"):
            if (value := getattr(measure, key)) is not None:
                metrics[f"{key}/{measure.node}"] = value
    for key in ("gap", "gap_round", "gap_gradients"):
        gaps = [value for measure in log if (value := getattr(measure, key)) is not None]
        if gaps:
            metrics[key] = max(gaps)
    return metrics


def group_metrics(tree: Tree, honest: Sequence[int], late: Sequence[int], truth: Sequence[int]) -> dict[str, float]:
    """Compare the clusters with the planted groups.

    Args:
        tree: the clusters.
        honest: the clients that count.
        late: those of them that joined later.
        truth: the planted group of every client.

    Returns:
        `groups_ari`; `groups_exact`: 1 where clusters and groups are the same; `enrolled_right`, where a client joined
        later: the share of them that found the cluster of its group.
    """
    groups = np.array([truth[client] for client in honest])
    cluster = np.array([tree.place(client).id for client in honest])
    metrics = {"groups_ari": ari(groups, cluster)}
    if late:
        metrics["enrolled_right"] = sum(enrolled_right(tree, client, truth) for client in late) / len(late)
    pairs = len(set(zip(groups.tolist(), cluster.tolist(), strict=True)))
    metrics["groups_exact"] = float(pairs == len(set(groups.tolist())) == len(set(cluster.tolist())))
    return metrics


def enrolled_right(tree: Tree, client: int, truth: Sequence[int]) -> bool:
    """Return whether the founders of a client's cluster are of the client's own planted group."""
    leaf = tree.place(client)
    return bool(leaf.founders) and all(truth[founder] == truth[client] for founder in leaf.founders)


def adversaries_apart(tree: Tree, honest: Sequence[int]) -> float:
    """Return 1 where no cluster holds both honest clients and adversaries, else 0."""
    mixed = any(len({client in honest for client in leaf.clients}) == 2 for leaf in tree.leaves())
    return float(not mixed)
