"""How good CFL's clusters are: for the clients, and against planted groups and adversaries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from shoal.methods.cfl.measure import ClusterMeasure
from shoal.methods.cfl.supervised import Score
from shoal.methods.cfl.tree import Tree
from shoal.methods.scores.clustering import ari

PathScores = Mapping[int, Mapping[int, tuple[Score, Score]]]
"""Of each client with a choice the scores of every node on its path, the root first, on two halves of its validation
samples: by client, then by node."""


def path_metrics(own: Mapping[int, Score], paths: PathScores) -> dict[str, float]:
    """What a client gains that may choose any model on its path from the root to its cluster.

    A client chooses by one half of its validation samples and is judged on the other, and the other way round: judged
    on those that it chose by, it could only gain.

    Args:
        own: the score of each client's own cluster: where it has no choice, that is all there is.
        paths: of each client with a choice.

    Returns:
        `acc_best`: mean accuracy with the chosen model; `acc_root`: with the root's (the federated model before any
        split, once there was one); `below_root`: clients whose chosen model is worse than the root's.
    """
    best, root = [], []
    for client, score in own.items():
        if client not in paths:
            best.append(score.accuracy)
            root.append(score.accuracy)
            continue
        found, number = paths[client], score.number
        best.append(sum(found[choice(found, by)][1 - by].correct for by in (0, 1)) / number)
        root.append(sum(half.correct for half in next(iter(found.values()))) / number)
    return {
        "acc_best": sum(best) / len(best),
        "acc_root": sum(root) / len(root),
        "below_root": float(sum(b < r for b, r in zip(best, root, strict=True))),
    }


def choice(found: Mapping[int, tuple[Score, Score]], by: int) -> int:
    """The node of a path, root first, with the best accuracy on half `by` (0 or 1).

    Where some are equally good, or the half is empty, the one nearest to the client's own cluster.
    """
    nodes = list(found)
    return max(nodes, key=lambda node: (found[node][by].correct, nodes.index(node)))


def leaf_metrics(tree: Tree, own: Mapping[int, Score], text: bool) -> dict[str, float]:
    """Mean accuracy in each cluster, of clients with its model (`own`); of texts also its perplexity."""
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
    """Norms, similarities and gaps of each cluster; and the largest gap of each kind."""
    metrics: dict[str, float] = {}
    for measure in log:
        for key in ("mean_norm", "max_norm", "gamma", "cross", "gap", "gap_round", "gap_gradients"):
            if (value := getattr(measure, key)) is not None:
                metrics[f"{key}/{measure.node}"] = value
    for key in ("gap", "gap_round", "gap_gradients"):
        found = [value for measure in log if (value := getattr(measure, key)) is not None]
        if found:
            metrics[key] = max(found)
    return metrics


def group_metrics(tree: Tree, honest: Sequence[int], late: Sequence[int], truth: Sequence[int]) -> dict[str, float]:
    """How the clusters compare with the planted groups.

    Args:
        tree: the clusters.
        honest: the clients that count.
        late: those of them that came later.
        truth: the planted group of every client.

    Returns:
        `groups_ari`; `groups_exact`: 1 where clusters and groups are the same; `enrolled_right`, where anybody came
        later: the share that found the cluster of its group.
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
    """Whether the founders of a client's cluster are of the client's own planted group."""
    leaf = tree.place(client)
    return bool(leaf.founders) and all(truth[founder] == truth[client] for founder in leaf.founders)


def adversaries_apart(tree: Tree, honest: Sequence[int]) -> float:
    """1 where no cluster holds both honest clients and adversaries, else 0."""
    honest_in = [sum(client in honest for client in leaf.clients) for leaf in tree.leaves()]
    mixed = any(0 < number < len(leaf.clients) for number, leaf in zip(honest_in, tree.leaves(), strict=True))
    return float(not mixed)
