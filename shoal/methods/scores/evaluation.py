"""The evaluation of a trained model: clusters over all samples, and in the final evaluation its representation.

It uses all training samples that some client holds and the test part, without augmentation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from shoal.core.threads import in_order
from shoal.data.views.array_views import ArrayRecipe
from shoal.data.views.augment import AnyRecipe, two_views
from shoal.methods.clustering.k_means import Clustering, kmeans
from shoal.methods.contract.base import Evaluation
from shoal.methods.contract.context import Context
from shoal.methods.contract.prediction import Prediction, ShardPredictions
from shoal.methods.scores.clustering import cluster_balance, label_table, table_scores
from shoal.methods.scores.probe import linear_probe
from shoal.methods.scores.representation import alignment, effective_rank, knn_accuracy, uniformity
from shoal.methods.training.local import as_input

MAX_JUDGED = 10_000
"""Samples, a seeded draw, for alignment, uniformity and effective rank."""
MAX_LEARN = 100_000
MAX_TEST = 30_000
"""Samples, seeded draws, that kNN and probe learn from and are tested on: kNN compares each with each."""


def evaluate_predictor(
    predict: Callable[[Tensor], Prediction],
    evaluation: Evaluation,
    recipe: AnyRecipe | None = None,
    shards: Iterable[ShardPredictions] | None = None,
) -> dict[str, float]:
    """Judge a model that assigns clusters itself.

    Args:
        predict: maps samples x (as of `Samples.x`) to clusters, soft assignments (n, c) and embeddings (n, d).
        evaluation: gives the samples.
        recipe: of the views that alignment compares; None: no alignment.
        shards: predictions for all samples, in order; None: `predict` makes them.

    Returns:
        Always `clusters_used` (clusters with at least one sample) and `balance` (entropy of the cluster sizes over
        log c); with labels `acc`, `nmi`, `ari`, `purity`; in the final evaluation also `representation_metrics`.
    """
    judged = JudgedSamples.at_end(evaluation)
    if shards is None:
        shards = predictions_of(predict, evaluation, judged.rows_of)
    predictions = joined(shards, sample_count(evaluation), len(judged.every))
    metrics = cluster_metrics(predictions.cluster.numpy(), predictions.columns, evaluation)
    if evaluation.final:
        metrics |= representation_metrics(
            lambda x: predict(x).embedding, predictions.embedding, judged, evaluation, recipe
        )
    return metrics


def evaluate_features(
    embed: Callable[[Tensor], Tensor],
    evaluation: Evaluation,
    clusters: int | None,
    recipe: AnyRecipe | None = None,
) -> dict[str, float]:
    """Judge a model without clusters of its own, by clusters that K-means (best of 10 starts) finds in its embeddings.

    Args:
        embed: maps samples x to embeddings (n, d).
        evaluation: gives the samples.
        clusters: c; None, where it is not known: no clusters are found.
        recipe: see `evaluate_predictor`.

    Returns:
        The metrics of `evaluate_predictor`.

    Raises:
        MethodError: fewer samples than clusters, or embeddings that are not finite.
    """
    shards = predictions_of(features_only(embed), evaluation, lambda h, _: h)
    h = joined(shards, sample_count(evaluation), sample_count(evaluation)).embedding
    metrics = {}
    if clusters is not None:
        clustering = feature_clusters(h, clusters, evaluation)
        own = replace(evaluation, at_site=None)  # K-means at another site numbers its clusters otherwise
        metrics = cluster_metrics(clustering.cluster, clusters, own)
    if evaluation.final:
        judged = JudgedSamples.at_end(evaluation)
        h = judged.rows_of(h, 0)
        metrics |= representation_metrics(embed, h, judged, evaluation, recipe)
    return metrics


def predictions_of(
    predict: Callable[[Tensor], Prediction], evaluation: Evaluation, kept: Callable[[Tensor, int], Tensor]
) -> Iterator[ShardPredictions]:
    """Yield the predictions that an evaluation uses, for all samples, batch by batch.

    Args:
        predict: see `evaluate_predictor`.
        evaluation: gives the samples.
        kept: returns those of some embeddings, the first of which has a position, that are kept: all may not fit into
            memory.
    """

    @torch.no_grad()  # of each thread
    def of_batch(batch: tuple[int, Tensor]) -> ShardPredictions:
        start, x = batch
        prediction = predict(x)
        return ShardPredictions(prediction.cluster.cpu(), prediction.soft.shape[1], kept(prediction.embedding, start))

    return in_order(of_batch, all_batches(evaluation), evaluation.threads)


def sample_count(evaluation: Evaluation) -> int:
    """Return the number of samples of an evaluation, training and test."""
    return len(evaluation.train) + len(evaluation.data.test_x)


def joined(shards: Iterable[ShardPredictions], samples: int, embedded: int) -> ShardPredictions:
    """Return the predictions of all shards as one.

    Each shard is copied to its place at once. Small tensors that were kept instead, between large ones that are freed,
    would keep the memory of these from being used again.

    Args:
        shards: in the order of their samples, at least one.
        samples: number of rows of `cluster` in all of them.
        embedded: number of rows of `embedding` in all of them.
    """
    cluster = torch.empty(samples, dtype=torch.int64)
    embedding = torch.empty(0)
    columns = 0
    first = 0
    row = 0
    for shard in shards:
        if not first:
            embedding = shard.embedding.new_empty((embedded, shard.embedding.shape[1]))
        columns = shard.columns
        cluster[first : first + len(shard.cluster)] = shard.cluster
        embedding[row : row + len(shard.embedding)] = shard.embedding
        first += len(shard.cluster)
        row += len(shard.embedding)
    assert (first, row) == (samples, embedded), "the shards of an evaluation have all of its samples"
    return ShardPredictions(cluster, columns, embedding)


def feature_clusters(h: Tensor, clusters: int, evaluation: Evaluation) -> Clustering:
    """Return K-means (best of 10 starts) of the embeddings h (n, d) of an evaluation's samples, with the same draws.

    Raises:
        MethodError: fewer samples than clusters, or embeddings that are not finite.
    """
    return kmeans(h.float().cpu().numpy(), clusters, evaluation.streams.numpy("evaluate.kmeans"))


def embed_with(network: Callable[[Tensor], Tensor], context: Context) -> Callable[[Tensor], Tensor]:
    """Return a function from images x (as of `Samples.x`) to the outputs of a network in evaluation mode."""

    @torch.no_grad()
    def embed(x: Tensor) -> Tensor:
        x = as_input(x.to(context.device))
        with context.autocast():
            return network(x).float()

    return embed


def features_only(embed: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Prediction]:
    """Return a predictor without clusters: features as `embedding`, `cluster` is -1, `soft` has no column."""

    def predict(x: Tensor) -> Prediction:
        h = embed(x)
        return Prediction(torch.full((len(h),), -1), h.new_zeros(len(h), 0), h)

    return predict


@dataclass(frozen=True)
class JudgedSamples:
    """The samples that judge a representation, as positions among training then test samples.

    Attributes:
        every: all of these, ascending, int64 (n,).
        learn: samples that kNN and probe learn from, int64 (l,); a seeded draw of more than `MAX_LEARN`. Without labels
            there are none, nor in `held_out`.
        held_out: samples on which they are tested, int64 (m,): the test part, or a seeded fifth of a set without one; a
            seeded draw of more than `MAX_TEST`.
        some: at most `MAX_JUDGED` of `held_out`, in the order drawn, for effective rank, uniformity and alignment.
    """

    every: Tensor
    learn: Tensor
    held_out: Tensor
    some: Tensor

    @classmethod
    def at_end(cls, evaluation: Evaluation) -> JudgedSamples:
        """Draw the samples of the final evaluation; other evaluations judge no representation, and draw none."""
        if not evaluation.final:
            none = torch.empty(0, dtype=torch.int64)
            return cls(none, none, none, none)
        learn, held_out = _split(evaluation)
        labelled = evaluation.data.train_y is not None
        some = held_out[
            torch.randperm(len(held_out), generator=evaluation.streams.torch("evaluate.judged"))[:MAX_JUDGED]
        ]
        learn = _draw(learn, MAX_LEARN if labelled else 0, evaluation.streams.torch("evaluate.learnt"))
        held_out = _draw(held_out, MAX_TEST if labelled else 0, evaluation.streams.torch("evaluate.held"))
        return cls(torch.cat((learn, held_out, some)).unique(), learn, held_out, some)

    def rows_of(self, rows: Tensor, start: int) -> Tensor:
        """Return those of rows (k, d), which belong to positions from `start` on, that judge, in their order."""
        first, last = torch.searchsorted(self.every, torch.tensor([start, start + len(rows)])).tolist()
        if last - first == len(rows):
            return rows
        return rows[(self.every[first:last] - start).to(rows.device)]

    def places(self, positions: Tensor, device: torch.device) -> Tensor:
        """Return the places of positions among `every`, int64, on a device."""
        return torch.searchsorted(self.every, positions).to(device)


def _draw(positions: Tensor, maximum: int, generator: torch.Generator) -> Tensor:
    """Return at most `maximum` of the positions, in their order."""
    if len(positions) <= maximum:
        return positions
    return positions[torch.randperm(len(positions), generator=generator)[:maximum].sort().values]


def representation_metrics(
    embed: Callable[[Tensor], Tensor],
    h: Tensor,
    judged: JudgedSamples,
    evaluation: Evaluation,
    recipe: AnyRecipe | None = None,
) -> dict[str, float]:
    """Return `uniformity`, `effective_rank`; with labels `knn` and `probe`; with a recipe `alignment`.

    kNN and probe learn from training samples and are tested on the test part; see `JudgedSamples`.

    Args:
        embed: maps samples x to embeddings (n, d).
        h: embeddings of the samples that judge, in the order of `judged.every`.
        judged: the positions of these samples.
        evaluation: gives the samples.
        recipe: of the views that alignment compares.
    """
    train = evaluation.train
    streams = evaluation.streams
    some = judged.places(judged.some, h.device)
    metrics = {"effective_rank": effective_rank(h[some])}
    if len(some) > 1:
        metrics["uniformity"] = uniformity(h[some])
    truth = true_labels(evaluation)
    labelled = truth is not None and len(truth) == len(train) + len(evaluation.data.test_x)
    if truth is not None and labelled and len(judged.learn) and len(judged.held_out):
        y = truth[judged.every.to(truth.device)].to(h.device)
        learn = judged.places(judged.learn, h.device)
        held_out = judged.places(judged.held_out, h.device)
        parts = (h[learn], y[learn], h[held_out], y[held_out])
        metrics["knn"] = knn_accuracy(*parts)
        metrics["probe"] = linear_probe(*parts, streams.torch("evaluate.probe")).accuracy
    has_views = train.data.spec.kind == "image" or isinstance(recipe, ArrayRecipe)
    if recipe is not None and has_views:
        generator = streams.torch("evaluate.views", train.data.device)
        distances = []
        for rows in judged.some.split(evaluation.batch):
            # Views a and b in one pass; a mean over batches must count their samples.
            h_a, h_b = embed(two_views(_x(evaluation, rows), recipe, generator)).chunk(2)
            distances.append(alignment(h_a, h_b) * len(rows))
        metrics["alignment"] = sum(distances) / len(judged.some)
    return metrics


def quick_probe(embed: Callable[[Tensor], Tensor], evaluation: Evaluation, limit: int) -> dict[str, float]:
    """Return `probe`: the accuracy of a linear probe that learns from a part of the training samples.

    Args:
        embed: samples x to embeddings (n, d).
        evaluation: its test part has labels.
        limit: most training samples to learn from, and most test samples to judge, each a seeded draw.
    """
    data = evaluation.data
    generator = evaluation.streams.torch("probe")
    assert data.test_y is not None
    learn = torch.randperm(len(evaluation.train), generator=generator)[:limit].to(data.device)
    judged = torch.randperm(len(data.test_x), generator=generator)[:limit].to(data.device)
    h = torch.cat([embed(evaluation.train.x(part)) for part in learn.split(evaluation.batch)])
    test = torch.cat([embed(data.computable(data.test_x[part])) for part in judged.split(evaluation.batch)])
    return {"probe": linear_probe(h, evaluation.train.y(learn), test, data.test_y[judged], generator).accuracy}


def cluster_metrics(cluster: np.ndarray, clusters: int, evaluation: Evaluation) -> dict[str, float]:
    """Return the scores of clusters on the population that every method is judged on.

    Args:
        cluster: (n,), of all training samples that some client holds, then of the test part.
        clusters: c, empty ones included.
        evaluation: gives the labels.

    Returns:
        `clusters_used` and `balance`; with labels also `acc`, `nmi`, `ari` and `purity`.
    """
    truth = true_labels(evaluation)
    # Where only training samples have labels, they come first.
    labels = None if truth is None else truth.cpu().numpy()
    table = label_table(cluster, labels, clusters, evaluation.data.spec.classes or 0)
    if evaluation.at_site is not None:
        evaluation.at_site.tables.append(table)
    return table_metrics(table)


def table_metrics(table: np.ndarray) -> dict[str, float]:
    """Return what `cluster_metrics` does, from the counts of all samples (`label_table`): the sum over those who count.

    Args:
        table: int (c, k + 1), of at least one sample.
    """
    sizes = table.sum(1)
    metrics = {"clusters_used": float((sizes > 0).sum()), "balance": cluster_balance(sizes)}
    labelled = table[:, :-1]
    return metrics | table_scores(labelled) if labelled.any() else metrics


def true_labels(evaluation: Evaluation) -> Tensor | None:
    """Return labels of the training samples, then of the test samples where they have some; None without any."""
    data = evaluation.data
    if data.train_y is None:
        return None
    y = evaluation.train.y()
    return y if data.test_y is None else torch.cat((y, data.test_y[:]))


def _split(evaluation: Evaluation) -> tuple[Tensor, Tensor]:
    """Return positions to learn from and positions held out, among training then test samples."""
    n = len(evaluation.train)
    m = len(evaluation.data.test_x)
    if m:
        return torch.arange(n), torch.arange(n, n + m)
    order = torch.randperm(n, generator=evaluation.streams.torch("evaluate.split"))
    return order[: n * 4 // 5], order[n * 4 // 5 :]


def _x(evaluation: Evaluation, positions: Tensor) -> Tensor:
    """Return samples at positions among training then test samples, all of them of one of the two."""
    n = len(evaluation.train)
    positions = positions.to(evaluation.data.device)
    if int(positions[0]) < n:
        return evaluation.train.x(positions)
    return evaluation.data.computable(evaluation.data.test_x[positions - n])


def samples_at(evaluation: Evaluation, positions: Tensor) -> Tensor:
    """Return samples at positions among training then test samples, int64 (n,), in their order."""
    n = len(evaluation.train)
    train = positions < n
    if bool(train.all()) or not bool(train.any()):
        return _x(evaluation, positions)
    early = _x(evaluation, positions[train])
    samples = early.new_empty((len(positions), *early.shape[1:]))
    samples[train.to(samples.device)] = early
    samples[~train.to(samples.device)] = _x(evaluation, positions[~train])
    return samples


def all_batches(evaluation: Evaluation) -> Iterator[tuple[int, Tensor]]:
    """Yield all training samples, then all test samples, batch by batch, each with the position of its first sample."""
    train, test = torch.arange(sample_count(evaluation)).tensor_split([len(evaluation.train)])
    for positions in (*train.split(evaluation.batch), *test.split(evaluation.batch)):
        if len(positions):
            yield int(positions[0]), _x(evaluation, positions)
