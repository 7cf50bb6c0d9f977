"""The cluster of every sample, and how sure a model is of it: for a run's table of clusters and for new images.

Symbols in shapes: n samples, c clusters, d features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.methods.contract.base import Clients, Evaluation, Method, Server
from shoal.methods.contract.context import MethodError
from shoal.methods.contract.prediction import Assignment, Prediction
from shoal.methods.scores.evaluation import all_batches, cluster_metrics, feature_clusters

ROWS = 4096
"""Samples in one pass when distances to centres are taken."""


class Nearest(NamedTuple):
    """The cluster of n samples, int64 (n,), its margin and the distance to its centre, both float32 (n,)."""

    cluster: Tensor
    confidence: Tensor
    distance: Tensor


def nearest_centres(features: Tensor, centres: Tensor, cluster: Tensor | None = None) -> Nearest:
    """Return the nearest centre of each sample, and by what margin it is the nearest.

    With d the distance to the centre of a sample's cluster and e that to the nearest other centre, the margin is
    (e - d) / e: 1 at the centre, 0 half way between two centres, and the same in any unit. It is also 0 where another
    centre is nearer than the cluster's own, and 1 where there is no other centre.

    Args:
        features: (n, d).
        centres: (c, d).
        cluster: int64 (n,), clusters to use instead of the nearest centres.

    >>> nearest = nearest_centres(torch.tensor([[0.0], [4.0], [5.0]]), torch.tensor([[0.0], [10.0]]))
    >>> [round(value, 3) for value in nearest.confidence.tolist()], nearest.distance.tolist()
    ([1.0, 0.333, 0.0], [0.0, 4.0, 5.0])
    """
    centres = centres.double()
    parts = []
    for start in range(0, len(features) or 1, ROWS):  # of no sample, too
        distances = torch.cdist(features[start : start + ROWS].double(), centres)
        assigned = distances.argmin(1) if cluster is None else cluster[start : start + ROWS].to(distances.device)
        distance = distances.gather(1, assigned[:, None]).squeeze(1)
        other = distances.scatter(1, assigned[:, None], torch.inf).amin(1)
        margin = torch.where(other.isinf(), 1.0, (other - distance) / other).nan_to_num(nan=0.0).clamp(0, 1)
        parts.append((assigned, margin.float(), distance.float()))
    return Nearest(*(torch.cat(part) for part in zip(*parts, strict=True)))


def centre_predictor(centres: Tensor) -> Callable[[Tensor], Prediction]:
    """Return a function to the nearest of centres (c, d), as a hard assignment; a sample's values are its embedding."""

    def predict(x: Tensor) -> Prediction:
        x = x.to(centres.device).flatten(1).float()
        cluster = nearest_centres(x, centres).cluster
        return Prediction(cluster, F.one_hot(cluster, len(centres)).float(), x)

    return predict


def assign_samples(
    predict: Callable[[Tensor], Prediction],
    evaluation: Evaluation,
    *,
    clusters: int | None = None,
    centres: Tensor | None = None,
    own_clusters: tuple[Tensor, Tensor] | None = None,
) -> Assignment:
    """Return the clusters of all samples of an evaluation.

    Args:
        predict: maps samples x to clusters, soft assignments (n, c) and embeddings (n, d). Where `soft` has no column,
            K-means finds the clusters among the embeddings, as in `shoal.methods.scores.evaluation.evaluate_features`.
        evaluation: gives the samples.
        clusters: c, for K-means.
        centres: (c, d) that define the clusters, so that confidence is a margin.
        own_clusters: of samples whose cluster depends on the client that holds them: their numbers in the training
            set, int64 (m,), and their clusters, int64 (m,), which replace those of `predict`.

    Raises:
        MethodError: K-means is needed, and the number of clusters is not known, there are fewer samples, or the
            embeddings are not finite.
    """
    parts = [predict(x) for _, x in all_batches(evaluation)]
    cluster, soft, features = (torch.cat(part).cpu() for part in zip(*parts, strict=True))
    if not soft.shape[1]:
        if clusters is None:
            raise MethodError("the number of clusters is not known: set model.clusters to have clusters found")
        clustering = feature_clusters(features, clusters, evaluation)
        cluster = torch.from_numpy(clustering.cluster)
        centres = torch.from_numpy(clustering.centres)
    if own_clusters is not None:
        # Training samples are in the order of the set, so that their indices ascend.
        position = torch.searchsorted(evaluation.train.index.cpu(), own_clusters[0].cpu())
        cluster = cluster.clone()
        cluster[position] = own_clusters[1].cpu()
    if centres is not None:
        nearest = nearest_centres(features, centres.cpu(), cluster)
        return Assignment(cluster, nearest.confidence, len(centres), features, centres.cpu().float(), nearest.distance)
    confidence = soft.float().gather(1, cluster[:, None]).squeeze(1).nan_to_num(nan=0.0)
    return Assignment(cluster, confidence, soft.shape[1], features)


def assignment_metrics(assignment: Assignment, evaluation: Evaluation) -> dict[str, float]:
    """Return the scores of an assignment: those of the run's table of clusters."""
    return cluster_metrics(assignment.cluster.cpu().numpy(), assignment.clusters, evaluation)


def assignment_of(method: Method, server: Server, clients: Clients, evaluation: Evaluation) -> Assignment:
    """Return the cluster of every sample, as a method's `evaluate` judges it.

    These are the method's own, else its predictor's; where that has no clusters (`soft` without a column), those that
    K-means finds among the embeddings, as in `evaluate_features`.

    Raises:
        MethodError: samples have no cluster (see `Method.assignment`), or see `assign_samples`.
    """
    assignment = method.assignment(server, clients, evaluation)
    if assignment is not None:
        return assignment
    return assign_samples(method.predictor(server), evaluation, clusters=method.context.known_clusters)
