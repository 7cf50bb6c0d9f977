"""Making of a partition: choice of samples, their clients, and held-out parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from shoal.core.errors import DataError, PartitionError, first_of
from shoal.core.streams import Streams
from shoal.data.partition import deal
from shoal.data.partition.schemes import (
    ByColumn,
    Dirichlet,
    LabelsPerClient,
    Majority,
    PartitionSettings,
)
from shoal.data.partition.table import Partition
from shoal.data.sets.prepared import PreparedSet

GROUPS = "groups"
"""Entry of a manifest's `extra` with the planted group of each client, by the client's name."""
MIN_TRAIN_SAMPLES = 2
"""Smallest number of training samples of a client: a single one has no contrast and no variance."""


def make_partition(
    settings: PartitionSettings, prepared: PreparedSet, *, limit: int | None = None, seed: int = 0
) -> Partition:
    """Give the training samples of a set to clients; the same arguments give the same partition.

    Each sample occurs at most once; rows are sorted by client, then sample. `settings` of the partition holds the
    scheme, limit, seed and, where samples of the set belong to no client, `left_out`.

    Args:
        settings: one of the schemes of data/partition/schemes.py.
        prepared: the data set.
        limit: largest number of training samples; they are drawn at random.
        seed: of every draw.

    Raises:
        PartitionError: labels or a column are missing, there are more clients than samples, or a client would have
            fewer than two samples. Natural clients with fewer than two samples, or three with a validation split, are
            left out instead, as long as two others remain.
    """
    streams = Streams(seed)
    samples = _limited(len(prepared.train_x), limit, streams)
    _check_clients(settings.clients, len(samples), limit)
    labels = None if prepared.train_y is None else np.asarray(prepared.train_y)[samples]
    owner, about = _deal(settings, _Samples(prepared, samples, labels), streams)
    if "left_out" in about:
        about["left_out"]["samples"] = int((owner == deal.NOBODY).sum())
    names: tuple[str, ...] = about.pop("names", ())
    groups: dict[str, int] = prepared.manifest.extra.get(GROUPS, {})
    truth: tuple[int, ...] = about.pop("truth", tuple(groups[name] for name in names if groups))
    clients: int = about.pop("clients", settings.clients)
    _check_sizes(np.bincount(owner[owner >= 0], minlength=clients))
    rows = np.flatnonzero(owner >= 0)
    rows = rows[np.lexsort((samples[rows], owner[rows]))]
    client = owner[rows]
    return Partition(
        prepared.manifest.name,
        prepared.manifest.digest,
        clients,
        samples[rows],
        client,
        _hold_out(client, clients, settings.validation, seed),
        {**asdict(settings), "limit": limit, "seed": seed, **about},
        names,
        truth,
    )


@dataclass(frozen=True)
class _Samples:
    """The training samples that take part.

    Attributes:
        prepared: their set.
        indices: theirs in the set, ascending, int64 (n,).
        labels: int64 (n,); None without labels.
    """

    prepared: PreparedSet
    indices: np.ndarray
    labels: np.ndarray | None


def _check_clients(clients: int, samples: int, limit: int | None) -> None:
    if clients > samples:
        advice = "lower partition.clients" if limit is None else "lower partition.clients or raise data.limit"
        raise PartitionError(f"{clients} clients cannot share {samples} samples: {advice}")


def _limited(n: int, limit: int | None, streams: Streams) -> np.ndarray:
    """Return the indices of the training samples that take part, ascending, int64."""
    if limit is not None and limit < 1:
        raise PartitionError(f"data.limit is {limit}, expected at least 1 sample, or none for all")
    if limit is None or limit >= n:
        return np.arange(n, dtype=np.int64)
    return np.sort(streams.numpy("partition limit").choice(n, size=limit, replace=False)).astype(np.int64)


Dealt = tuple[np.ndarray, dict[str, Any]]
"""The client of each sample, int64 (n,), and further results of the scheme: names, truth, clients, left_out."""


def _deal(settings: PartitionSettings, samples: _Samples, streams: Streams) -> Dealt:
    draw = streams.numpy(f"partition {settings.kind}")
    if isinstance(settings, ByColumn):
        return _by_column(settings, samples, draw)
    if isinstance(settings, LabelsPerClient):
        return _by_labels(settings, samples, draw)
    if isinstance(settings, Majority):
        return _by_majority(settings, samples, draw)
    clients = settings.clients
    if isinstance(settings, Dirichlet):
        labels = _need_labels(samples, settings)
        return deal.deal_dirichlet(labels, clients, settings.beta, settings.minimum, draw), {}
    return deal.deal_iid(samples.labels, len(samples.indices), clients, draw), {}


def _by_labels(settings: LabelsPerClient, samples: _Samples, draw: np.random.Generator) -> Dealt:
    labels = _need_labels(samples, settings)
    values = np.unique(labels)
    labels_held = deal.label_holders(len(values), settings.clients, settings.labels, draw)
    owner = deal.deal_labels(labels, values, labels_held, draw)
    about: dict[str, Any] = {}
    without_holder = np.delete(values, labels_held.ravel())
    if len(without_holder):
        names = ", ".join(map(str, without_holder))
        about["left_out"] = {"reason": f"clients * labels < {len(values)}: nobody holds the labels {names}"}
    if settings.labels == 1:
        about["truth"] = tuple(int(values[v]) for v in labels_held[:, 0])
    return owner, about


def _by_majority(settings: Majority, samples: _Samples, draw: np.random.Generator) -> Dealt:
    clients = settings.clients
    labels = _need_labels(samples, settings)
    values = np.unique(labels)
    owner = deal.deal_majority(labels, values, clients, settings.p, draw)
    about: dict[str, Any] = {}
    if (owner == deal.NOBODY).any():
        reason = (
            f"each client has {(owner == 0).sum()} samples, the most that gives all the same number and the part p "
            "from a cluster of their own"
        )
        about["left_out"] = {"reason": reason}
    if settings.p > 0:
        about["truth"] = tuple(k % len(values) for k in range(clients))
    return owner, about


def _by_column(settings: ByColumn, samples: _Samples, draw: np.random.Generator) -> Dealt:
    prepared = samples.prepared
    try:
        column = prepared.column(settings.column)
    except DataError as error:
        raise PartitionError(f"partition.column: {error}") from error
    values, owner = np.unique(column, return_inverse=True)
    names = list(map(str, values))
    if settings.column == "client" and (listed := prepared.manifest.extra.get("clients")):
        names = [str(listed[v]) for v in values]
    owner = owner[samples.indices]
    if settings.clients > len(names):
        raise PartitionError(
            f"partition.clients is {settings.clients}, but column {settings.column!r} of {prepared.manifest.name!r} "
            f"names {len(names)} clients: expected at most that, or 0 for all"
        )
    chosen = np.arange(len(names))
    reasons = []
    if 0 < settings.clients < len(names):
        chosen = np.sort(draw.choice(len(names), size=settings.clients, replace=False))
        reasons.append(f"{len(chosen)} of {len(names)} clients take part")
    sizes = np.bincount(owner, minlength=len(names))
    small, too_few = _small_clients([names[k] for k in chosen], sizes[chosen], settings.validation)
    kept = [k for k in chosen if names[k] not in small]
    number = np.full(len(names), deal.NOBODY, dtype=np.int64)
    number[kept] = np.arange(len(kept))
    about: dict[str, Any] = {"names": tuple(names[k] for k in kept), "clients": len(kept)}
    if small:
        about["left_out"] = {"reason": "; ".join([*reasons, too_few]), "clients": small}
    elif reasons:
        about["left_out"] = {"reason": reasons[0]}
    return number[owner], about


def _need_labels(samples: _Samples, settings: PartitionSettings) -> np.ndarray:
    if samples.labels is None:
        raise PartitionError(
            f"scheme {settings.kind!r} needs labels, and data set {samples.prepared.manifest.name!r} has none: use "
            "'iid', or 'by_column' where the data name their clients"
        )
    return samples.labels


def _small_clients(names: Sequence[str], sizes: np.ndarray, validation: float) -> tuple[dict[str, int], str]:
    """Return the natural clients with fewer samples than a method can learn from, with their samples, and in words.

    Args:
        names: of the clients that take part.
        sizes: the number of samples of each.
        validation: share of each client's samples that is held out.

    Raises:
        PartitionError: fewer than two of several clients would remain.
    """
    needed = MIN_TRAIN_SAMPLES + (validation > 0)
    small = {name: int(size) for name, size in zip(names, sizes, strict=True) if size < needed}
    left = first_of([f"{name!r}" for name in small])
    too_few = f"{len(small)} of {len(names)} clients have fewer than {needed} samples"
    if small and len(names) - len(small) < min(2, len(names)):
        raise PartitionError(
            f"{too_few} ({left}), and at least 2 clients are needed: add samples "
            "of them to the data set, raise data.limit, lower partition.validation, or set partition.kind to iid"
        )
    return small, f"{too_few}: {left}"


def _check_sizes(sizes: np.ndarray) -> None:
    """Refuse clients that cannot train: fewer than two samples."""
    small = np.flatnonzero(sizes < MIN_TRAIN_SAMPLES)
    if len(small):
        k = small[0]
        more = f", and {len(small) - 1} other clients have fewer than two" * (len(small) > 1)
        raise PartitionError(
            f"client {k} would have {('no sample', 'only one sample')[sizes[k]]}{more}: lower partition.clients, raise "
            "data.limit, or choose another partition.kind"
        )


def _hold_out(client: np.ndarray, clients: int, fraction: float, seed: int) -> np.ndarray:
    """Return which samples are for validation: a share of each client's, at least one, and never all.

    `client` is ascending, so that each client's samples are a run of rows.
    """
    validation = np.zeros(len(client), dtype=bool)
    if fraction <= 0:
        return validation
    start = 0
    for k, size in enumerate(np.bincount(client, minlength=clients).tolist()):
        count = min(max(round(size * fraction), 1), size - 1)
        # A stream per client: what one client holds out does not depend on the others.
        rng = Streams(seed, client=k).numpy("partition validation")
        validation[start + rng.choice(size, size=count, replace=False)] = True
        start += size
    return validation
