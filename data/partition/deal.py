"""The dealing rules of the schemes: each takes labels (or clusters) and returns the client of each sample.

All return int64 (n,): the client of each sample, or NOBODY.
"""

from __future__ import annotations

import bisect
import math

import numpy as np

from shoal.core.errors import PartitionError

NOBODY = -1
MAX_DRAWS = 1000
"""Draws of Dirichlet proportions before a partition is refused."""


def deal_iid(labels: np.ndarray | None, n: int, clients: int, draw: np.random.Generator) -> np.ndarray:
    """Deal like cards, class by class: per class and overall, two clients differ by one sample at most.

    Args:
        labels: int64 (n,), or None without labels.
        n: number of samples.
        clients: number of clients.
        draw: the random stream.
    """
    order = draw.permutation(n)
    if labels is not None:
        order = order[np.argsort(labels[order], kind="stable")]
    owner = np.empty(n, dtype=np.int64)
    owner[order] = draw.permutation(clients)[np.arange(n) % clients]
    return owner


def deal_dirichlet(
    labels: np.ndarray, clients: int, beta: float, minimum: int, draw: np.random.Generator
) -> np.ndarray:
    """Deal each class in proportions drawn from Dirichlet(beta), with counts by the largest remainder.

    Args:
        labels: int64 (n,).
        clients: number of clients.
        beta: concentration, above 0.
        minimum: samples that each client must get.
        draw: the random stream.

    Raises:
        PartitionError: beta is not above 0; not enough samples; or no draw gave every client the minimum.
    """
    if not beta > 0:
        raise PartitionError(f"partition.beta is {beta}, expected above 0")
    if clients * minimum > len(labels):
        raise PartitionError(
            f"{clients} clients with at least {minimum} samples each need {clients * minimum:,} samples, there are "
            f"{len(labels):,}: lower partition.clients or partition.minimum, or raise data.limit"
        )
    values, sizes = np.unique(labels, return_counts=True)
    best = -1
    for _ in range(MAX_DRAWS):
        counts = np.stack([largest_remainder(_proportions(clients, beta, draw), int(size)) for size in sizes])
        smallest = int(counts.sum(axis=0).min())
        best = max(best, smallest)
        if smallest >= minimum:
            return _deal_counts(labels, values, counts, draw)
    raise PartitionError(
        f"in {MAX_DRAWS} draws of Dirichlet({beta}) the smallest client never had {minimum} samples (at best {best}): "
        f"raise partition.beta, or lower partition.clients or partition.minimum"
    )


def _proportions(clients: int, beta: float, draw: np.random.Generator) -> np.ndarray:
    drawn = draw.dirichlet(np.full(clients, beta))
    if np.isfinite(drawn).all() and drawn.sum() > 0:
        return drawn
    # Towards beta = 0 the draw underflows; its limit is a single client that takes all.
    result: np.ndarray = np.eye(clients)[draw.integers(clients)]
    return result


def largest_remainder(proportions: np.ndarray, total: int) -> np.ndarray:
    """Return whole numbers that sum to `total` exactly and are nearest to proportions * total, int64.

    >>> largest_remainder(np.array([0.5, 0.3, 0.2]), 4).tolist()
    [2, 1, 1]
    """
    shares = proportions / proportions.sum() * total
    counts = np.floor(shares).astype(np.int64)
    rest = total - int(counts.sum())
    counts[np.argsort(counts - shares, kind="stable")[:rest]] += 1
    return np.asarray(counts)


def _deal_counts(labels: np.ndarray, values: np.ndarray, counts: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Give `counts[v, k]` samples of label values[v] to client k; those of a label that nobody holds to NOBODY."""
    owner = np.full(len(labels), NOBODY, dtype=np.int64)
    for value, row in zip(values, counts, strict=True):
        if row.sum():
            samples = draw.permutation(np.flatnonzero(labels == value))
            owner[samples] = np.repeat(np.arange(len(row)), row)
    return owner


def label_holders(classes: int, clients: int, labels: int, draw: np.random.Generator) -> np.ndarray:
    """Draw the labels of each client, int64 (clients, labels), distinct in a row, ascending.

    One client after another chooses at random among the labels with the fewest holders, so that two labels differ by at
    most one holder, and every label is used if clients * labels >= classes.

    Raises:
        PartitionError: a client would hold more labels than there are.
    """
    if labels > classes:
        raise PartitionError(f"partition.labels is {labels}, but there are {classes} labels: expected at most that")
    uses = np.zeros(classes, dtype=np.int64)
    labels_held = np.empty((clients, labels), dtype=np.int64)
    for client in range(clients):
        chosen = np.lexsort((draw.random(classes), uses))[:labels]
        uses[chosen] += 1
        labels_held[client] = np.sort(chosen)
    return labels_held


def deal_labels(
    labels: np.ndarray, values: np.ndarray, labels_held: np.ndarray, draw: np.random.Generator
) -> np.ndarray:
    """Split each label's samples evenly among its holders; labels without a holder go to NOBODY.

    Args:
        labels: int64 (n,).
        values: the label values that `labels_held` indexes.
        labels_held: int64 (clients, labels per client).
        draw: the random stream.

    Raises:
        PartitionError: a label has fewer samples than holders.
    """
    counts = np.zeros((len(values), len(labels_held)), dtype=np.int64)
    for v, value in enumerate(values):
        holders = draw.permutation(np.flatnonzero((labels_held == v).any(axis=1)))
        size = int((labels == value).sum())
        if not len(holders):
            continue
        if size < len(holders):
            raise PartitionError(
                f"label {int(value)} has {size} samples for {len(holders)} clients that hold it: lower "
                f"partition.clients or partition.labels, or raise data.limit"
            )
        counts[v, holders] = size // len(holders)
        counts[v, holders[: size % len(holders)]] += 1
    return _deal_counts(labels, values, counts, draw)


def majority_part(size: int, p: float) -> int:
    """Return floor(p size), also where p is a rounding error below its decimal value (0.29 * 100)."""
    return math.floor(p * size + 1e-9)


def deal_majority(
    clusters: np.ndarray, values: np.ndarray, clients: int, p: float, draw: np.random.Generator
) -> np.ndarray:
    """Deal floor(p n_k) samples of cluster k mod K to client k, then a uniform share of the others.

    n_k is the same for all clients, and as large as the smallest cluster allows; further samples go to NOBODY.

    Args:
        clusters: int64 (n,), a cluster value of each sample.
        values: the K cluster values.
        clients: number of clients.
        p: from 0 to 1.
        draw: the random stream.
    """
    own = np.arange(clients) % len(values)
    sizes = np.array([(clusters == value).sum() for value in values])
    owners = np.bincount(own)
    most = int((sizes[: len(owners)] // owners).min())
    size = bisect.bisect_right(range(len(clusters) // clients + 1), most, key=lambda size: majority_part(size, p)) - 1
    part = majority_part(size, p)
    owner = np.full(len(clusters), NOBODY, dtype=np.int64)
    for v, value in enumerate(values):
        takers = np.flatnonzero(own == v)
        samples = draw.permutation(np.flatnonzero(clusters == value))
        owner[samples[: part * len(takers)]] = np.repeat(takers, part)
    rest = draw.permutation(np.flatnonzero(owner == NOBODY))
    owner[rest[: (size - part) * clients]] = np.repeat(np.arange(clients), size - part)
    return owner
