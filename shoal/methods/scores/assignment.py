"""The cluster of every sample and how sure a model is of it: what a run's cluster table and new images are given.

Symbols in shapes: n samples, c clusters, d features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.methods.contract.base import Clients, Evaluation, Method, Server
from shoal.methods.contract.context import MethodError
from shoal.methods.contract.prediction import Assignment, Prediction
from shoal.methods.scores.evaluation import all_batches, feature_clusters

ROWS = 4096
"""Samples in one pass when distances to centres are taken."""


class Nearest(NamedTuple):
    """Of n samples: the cluster int64 (n,), its margin and the distance to its centre, both float32 (n,)."""

    cluster: Tensor
    confidence: Tensor
    distance: Tensor


def nearest_centres(features: Tensor, centres: Tensor, cluster: Tensor | None = None) -> Nearest:
    """The nearest centre of each sample, and by what margin it is the nearest.

    With d the distance to the centre of a sample's cluster and e that to the nearest other centre, the margin is
    (e - d) / e: 1 at the centre, 0 half way between two centres, and the same in any unit. It is 0 too where another
    centre is nearer than the cluster's own, and 1 where there is no other centre.

    Args:
        features: (n, d).
        centres: (c, d).
        cluster: int64 (n,), where it is not the nearest centre that counts.

    >>> found = nearest_centres(torch.tensor([[0.0], [4.0], [5.0]]), torch.tensor([[0.0], [10.0]]))
    >>> [round(value, 3) for value in found.confidence.tolist()], found.distance.tolist()
    ([1.0, 0.333, 0.0], [0.0, 4.0, 5.0])
    """
    centres = centres.double()
    parts = []
    for start in range(0, len(features), ROWS):
        distances = torch.cdist(features[start : start + ROWS].double(), centres)
        own = distances.argmin(1) if cluster is None else cluster[start : start + ROWS].to(distances.device)
        distance = distances.gather(1, own[:, None]).squeeze(1)
        other = distances.scatter(1, own[:, None], torch.inf).amin(1)
        margin = torch.where(other.isinf(), 1.0, (other - distance) / other).nan_to_num(nan=0.0).clamp(0, 1)
        parts.append((own, margin.float(), distance.float()))
    if not parts:
        nothing = centres.new_zeros(0)
        return Nearest(nothing.long(), nothing.float(), nothing.float())
    return Nearest(*(torch.cat(part) for part in zip(*parts, strict=True)))


def assign_samples(
    predict: Callable[[Tensor], Prediction],
    evaluation: Evaluation,
    clusters: int | None,
    *,
    centres: Tensor | None = None,
    held: tuple[Tensor, Tensor] | None = None,
) -> Assignment:
    """Clusters of all samples of an evaluation.

    Args:
        predict: samples x to clusters, soft assignments (n, c) and embeddings (n, d); where `soft` has no column
            K-means finds the clusters among the embeddings, as `shoal.methods.scores.evaluation.evaluate_features`
            does.
        evaluation: what to work on.
        clusters: c, for K-means.
        centres: (c, d) that define the clusters, so that confidence is a margin.
        held: samples whose cluster depends on who holds them: their numbers in the training set, int64 (m,), and their
            clusters, int64 (m,), which count instead of what `predict` says.

    Raises:
        MethodError: K-means is needed, and nobody knows how many clusters there are, there are fewer samples, or the
            embeddings are not finite.
    """
    parts = [predict(x) for _, x in all_batches(evaluation)]
    cluster, soft, features = (torch.cat(part).cpu() for part in zip(*parts, strict=True))
    if not soft.shape[1]:
        if clusters is None:
            raise MethodError("nobody knows how many clusters there are: set model.clusters to have them found")
        found = feature_clusters(features, clusters, evaluation)
        cluster, centres = torch.from_numpy(found.cluster), torch.from_numpy(found.centres)
    if held is not None:
        # Training samples are in the order of the set, so that their numbers ascend.
        position = torch.searchsorted(evaluation.train.index.cpu(), held[0].cpu())
        cluster = cluster.clone()
        cluster[position] = held[1].cpu()
    if centres is not None:
        near = nearest_centres(features, centres.cpu(), cluster)
        return Assignment(cluster, near.confidence, len(centres), features, centres.cpu().float(), near.distance)
    confidence = soft.float().gather(1, cluster[:, None]).squeeze(1).nan_to_num(nan=0.0)
    return Assignment(cluster, confidence, soft.shape[1], features)


def assignment_of(method: Method, server: Server, clients: Clients, evaluation: Evaluation) -> Assignment:
    """The clusters that a method's `evaluate` judges, sample by sample.

    What the method says itself, else what its predictor says; where that has no clusters (`soft` without a column),
    those that K-means finds among the embeddings, as `evaluate_features` does.

    Raises:
        MethodError: no cluster of a sample is defined (see `Method.assignment`), or as `assign_samples`.
    """
    own = method.assignment(server, clients, evaluation)
    if own is not None:
        return own
    return assign_samples(method.predictor(server), evaluation, method.context.known_clusters)
