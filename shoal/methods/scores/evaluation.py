"""How a trained model is judged: clusters over all samples, and in the final evaluation its representation.

All training samples that some client holds count, and the test part, without augmentation. Training samples carry
their planted rotations and label maps; test samples are as the set has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shoal.data.augment import Recipe, normalise, two_views
from shoal.methods.clustering.device_k_means import device_kmeans
from shoal.methods.clustering.k_means import Clustering, kmeans
from shoal.methods.contract.base import Evaluation
from shoal.methods.contract.context import Context
from shoal.methods.contract.prediction import Prediction, ShardPredictions, Shared
from shoal.methods.scores.clustering import cluster_balance, cluster_scores
from shoal.methods.scores.probe import linear_probe, sgd_probe_accuracy
from shoal.methods.scores.representation import alignment, effective_rank, knn_accuracy, uniformity

JUDGED = 10_000
"""At most so many samples, a seeded draw, go into alignment, uniformity and effective rank."""
LEARNT, HELD = 100_000, 30_000
"""At most so many training samples, a seeded draw, do kNN and probe learn from, and so many others judge them: a vote
compares each of these with each of those."""
BATCH = 512
"""Samples of a step of the Adam probe."""


def evaluate_predictor(
    predict: Callable[[Tensor], Prediction],
    evaluation: Evaluation,
    recipe: Recipe | None = None,
) -> dict[str, float]:
    """Judge a model that assigns clusters itself.

    Args:
        predict: samples x as `Samples.x` gives them to clusters, soft assignments (n, c) and embeddings (n, d).
        evaluation: what to work on.
        recipe: of the views that alignment compares; None: no alignment.

    Returns:
        Always `clusters_used` (clusters with at least one sample) and `balance` (entropy of the cluster sizes over
        log c); with labels `acc`, `nmi`, `ari`, `purity`; in the final evaluation also what
        `representation_metrics` gives.
    """
    judged = Judged.from_evaluation(evaluation) if evaluation.final else None
    seen = list(evaluation.seen() if evaluation.seen else see(predict, evaluation, "clusters"))
    metrics = _cluster_metrics(torch.cat([part.cluster for part in seen]).numpy(), seen[-1].columns, evaluation)
    if judged is not None:
        h = torch.cat([part.embedding for part in seen])
        metrics |= representation_metrics(lambda x: predict(x).embedding, h, judged, evaluation, recipe)
    return metrics


def evaluate_features(
    embed: Callable[[Tensor], Tensor],
    evaluation: Evaluation,
    clusters: int | None,
    recipe: Recipe | None = None,
) -> dict[str, float]:
    """Judge a model without clusters of its own: K-means (best of 10 starts) on its embeddings finds them.

    Args:
        embed: samples x to embeddings (n, d).
        evaluation: what to work on.
        clusters: c; None where nobody knows how many: K-means is left out then.
        recipe: as for `evaluate_predictor`.

    Returns:
        As `evaluate_predictor`.

    Raises:
        MethodError: fewer samples than clusters, or embeddings that are not finite.
    """
    seen = evaluation.seen() if evaluation.seen else see(features_only(embed), evaluation, "features")
    h = torch.cat([part.embedding for part in seen])
    metrics = {}
    if clusters is not None:
        found = feature_clusters(h, clusters, evaluation)
        metrics = _cluster_metrics(found.cluster, clusters, evaluation)
    if evaluation.final:
        judged = Judged.from_evaluation(evaluation)
        h = judged.rows_of(h, 0)
        metrics |= representation_metrics(embed, h, judged, evaluation, recipe)
    return metrics


def see(
    predict: Callable[[Tensor], Prediction],
    evaluation: Evaluation,
    what: Shared,
    part: tuple[int, int] = (0, 1),
) -> Iterator[ShardPredictions]:
    """What an evaluation uses of a model's answers for all samples, or for a part of them, batch by batch.

    Args:
        predict: as for `evaluate_predictor`.
        evaluation: what to work on.
        what: as of `Method.shared_in_evaluation`.
        part: number of the part, and how many parts there are; all of them in order are the same as one.
    """
    judged = Judged.from_evaluation(evaluation) if evaluation.final and what == "clusters" else None
    for start, x in all_batches(evaluation, part):
        found = predict(x)
        if what == "features":
            kept = found.embedding
        else:  # of very many samples not all embeddings fit into memory
            kept = found.embedding[:0, :0] if judged is None else judged.rows_of(found.embedding, start)
        yield ShardPredictions(found.cluster.cpu(), found.soft.shape[1], kept)


def feature_clusters(h: Tensor, clusters: int, evaluation: Evaluation) -> Clustering:
    """K-means (best of 10 starts) on the embeddings h (n, d) of an evaluation's samples: always the same draws.

    Raises:
        MethodError: fewer samples than clusters, or embeddings that are not finite.
    """
    rng = evaluation.streams.numpy("evaluate.kmeans")
    if h.device.type == "cpu":
        return kmeans(h.float().numpy(), clusters, rng)
    return device_kmeans(h, clusters, rng)


def embed_with(network: Callable[[Tensor], Tensor], context: Context) -> Callable[[Tensor], Tensor]:
    """A function from images x, as `Samples.x` gives them, to what a network in evaluation mode makes of them."""

    @torch.no_grad()
    def embed(x: Tensor) -> Tensor:
        x = normalise(x.to(context.device)).contiguous(memory_format=torch.channels_last)
        with context.autocast():
            return network(x).float()

    return embed


def features_only(embed: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Prediction]:
    """A predictor of a model without clusters: features as `embedding`, `cluster` is -1, `soft` has no column."""

    def predict(x: Tensor) -> Prediction:
        h = embed(x)
        return Prediction(torch.full((len(h),), -1), h.new_zeros(len(h), 0), h)

    return predict


@dataclass(frozen=True)
class Judged:
    """Which samples of an evaluation judge a representation, by their positions among training then test samples.

    Attributes:
        every: all of these, ascending, int64 (n,).
        learn: those that kNN and probe learn from, int64 (l,): of more than `LEARNT` a seeded draw.
        held: those on which they are judged, int64 (m,): the test part, or a seeded fifth of a set without one; of more
            than `HELD` a seeded draw.
        some: of `held`, at most `JUDGED`, in the order drawn: for effective rank, uniformity and alignment.
    """

    every: Tensor
    learn: Tensor
    held: Tensor
    some: Tensor

    @classmethod
    def from_evaluation(cls, evaluation: Evaluation) -> Judged:
        """The samples that judge an evaluation's model."""
        learn, held = _split(evaluation)
        some = held[torch.randperm(len(held), generator=evaluation.streams.torch("evaluate.judged"))[:JUDGED]]
        learn = _drawn(learn, LEARNT, evaluation.streams.torch("evaluate.learnt"))
        held = _drawn(held, HELD, evaluation.streams.torch("evaluate.held"))
        return cls(torch.cat((learn, held, some)).unique(), learn, held, some)

    def rows_of(self, rows: Tensor, start: int) -> Tensor:
        """Of rows (k, d) that belong to the positions from `start` on those that judge, in their order."""
        first, last = torch.searchsorted(self.every, torch.tensor([start, start + len(rows)])).tolist()
        if last - first == len(rows):
            return rows
        return rows[(self.every[first:last] - start).to(rows.device)]

    def places(self, positions: Tensor, device: torch.device) -> Tensor:
        """Where positions are among `every`, int64, on a device."""
        return torch.searchsorted(self.every, positions).to(device)


def _drawn(positions: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """At most so many of some positions, in their order."""
    if len(positions) <= most:
        return positions
    return positions[torch.randperm(len(positions), generator=generator)[:most].sort().values]


def representation_metrics(
    embed: Callable[[Tensor], Tensor],
    h: Tensor,
    judged: Judged,
    evaluation: Evaluation,
    recipe: Recipe | None = None,
) -> dict[str, float]:
    """`uniformity` and `effective_rank`; with labels `knn` and `probe`; with a recipe, on images, `alignment`.

    `probe_gradient` says how far the probe's fit is from its optimum (`shoal.methods.scores.logistic`). In brief only
    what
    is judged twice: `uniformity`, `knn` and `probe`.
    Judged on the test part, after learning from the training samples; see `Judged`.

    Args:
        embed: samples x to embeddings (n, d).
        h: embeddings of the samples that judge, in the order of `judged.every`.
        judged: which they are.
        evaluation: of which they are.
        recipe: of the views that alignment compares.
    """
    train, streams = evaluation.train, evaluation.streams
    some = judged.places(judged.some, h.device)
    metrics = {} if evaluation.brief else {"effective_rank": effective_rank(h[some])}
    if len(some) > 1:
        metrics["uniformity"] = uniformity(h[some])
    truth = _labels(evaluation)
    labelled = truth is not None and len(truth) == len(train) + len(evaluation.data.test_x)
    if truth is not None and labelled and len(judged.learn) and len(judged.held):
        y = truth[judged.every.to(truth.device)].to(h.device)
        learn, held = judged.places(judged.learn, h.device), judged.places(judged.held, h.device)
        metrics["knn"] = knn_accuracy(h[learn], y[learn], h[held], y[held])
        parts = h[learn], y[learn], h[held], y[held]
        probe = linear_probe(*parts, streams.torch("evaluate.probe"))
        metrics |= {"probe": probe.accuracy, "probe_gradient": probe.fit.gradient}
        if evaluation.probe_epochs and not evaluation.brief:
            generator = streams.torch("evaluate.probe_sgd")
            metrics["probe_sgd"] = sgd_probe_accuracy(*parts, generator, epochs=evaluation.probe_epochs)
    if recipe is not None and train.data.spec.kind == "image" and not evaluation.brief:
        generator = streams.torch("evaluate.views", train.data.device)
        distances = []
        for rows in judged.some.split(evaluation.batch):
            # Views a and b in one pass; a mean over batches must count their samples.
            h_a, h_b = embed(two_views(_x(evaluation, rows), recipe, generator)).chunk(2)
            distances.append(alignment(h_a, h_b) * len(rows))
        metrics["alignment"] = sum(distances) / len(judged.some)
    return metrics


def quick_probe(
    embed: Callable[[Tensor], Tensor], evaluation: Evaluation, limit: int, *, sgd_steps: int = 0
) -> dict[str, float]:
    """`probe`: a linear probe that learns from at most `limit` training samples, judged on as many of the test part.

    That part has labels.

    Args:
        embed: samples x to embeddings (n, d).
        evaluation: what to work on.
        limit: of the samples on either side, a seeded draw.
        sgd_steps: of the Adam probe that papers train (1,000), as `probe_sgd`; rounded up to whole epochs; 0: none.
    """
    data, generator = evaluation.data, evaluation.streams.torch("probe")
    assert data.test_y is not None
    learn = torch.randperm(len(evaluation.train), generator=generator)[:limit].to(data.device)
    judged = torch.randperm(len(data.test_x), generator=generator)[:limit].to(data.device)
    h = torch.cat([embed(evaluation.train.x(part)) for part in learn.split(evaluation.batch)])
    test = torch.cat([embed(data.test_x[part].float().div(255)) for part in judged.split(evaluation.batch)])
    parts = h, evaluation.train.y(learn), test, data.test_y[judged]
    metrics = {"probe": linear_probe(*parts, generator).accuracy}
    if sgd_steps and not evaluation.brief:
        epochs = -(-sgd_steps // -(-len(h) // BATCH))
        drawn = evaluation.streams.torch("probe_sgd")
        metrics["probe_sgd"] = sgd_probe_accuracy(*parts, drawn, epochs=epochs, batch=BATCH)
    return metrics


def _cluster_metrics(cluster: np.ndarray, clusters: int, evaluation: Evaluation) -> dict[str, float]:
    metrics = {
        "clusters_used": float(len(np.unique(cluster))),
        "balance": cluster_balance(cluster, clusters),
    }
    truth = _labels(evaluation)
    if truth is not None and len(truth):
        # Where only training samples have labels, they come first.
        metrics |= cluster_scores(truth.cpu().numpy(), cluster[: len(truth)])
    return metrics


def _labels(evaluation: Evaluation) -> Tensor | None:
    """Labels of the training samples, then of the test samples where they have some; None without any."""
    data = evaluation.data
    if data.train_y is None:
        return None
    y = evaluation.train.y()
    return y if data.test_y is None else torch.cat((y, data.test_y))


def _split(evaluation: Evaluation) -> tuple[Tensor, Tensor]:
    """Positions to learn from and positions held out, among training then test samples."""
    n, m = len(evaluation.train), len(evaluation.data.test_x)
    if m:
        return torch.arange(n), torch.arange(n, n + m)
    order = torch.randperm(n, generator=evaluation.streams.torch("evaluate.split"))
    return order[: n * 4 // 5], order[n * 4 // 5 :]


def _x(evaluation: Evaluation, positions: Tensor) -> Tensor:
    """Samples at positions among training then test samples; all of one part."""
    n = len(evaluation.train)
    positions = positions.to(evaluation.data.device)
    if int(positions[0]) < n:
        return evaluation.train.x(positions)
    x = evaluation.data.test_x[positions - n]
    return x.float().div_(255) if evaluation.data.spec.kind == "image" else x


def all_batches(evaluation: Evaluation, part: tuple[int, int] = (0, 1)) -> Iterator[tuple[int, Tensor]]:
    """All training samples, then all test samples, batch by batch, each with the position of its first sample.

    Args:
        evaluation: what to work on.
        part: number of a part of the batches, and how many parts there are; in any number the batches are the same.
    """
    n, m = len(evaluation.train), len(evaluation.data.test_x)
    starts = [(start, min(start + evaluation.batch, n)) for start in range(0, n, evaluation.batch)]
    starts += [(start, min(start + evaluation.batch, n + m)) for start in range(n, n + m, evaluation.batch)]
    number, parts = part
    for start, end in starts[len(starts) * number // parts : len(starts) * (number + 1) // parts]:
        yield start, _x(evaluation, torch.arange(start, end))
