"""Making of a partition: choice of samples, their clients, and held-out parts."""

from __future__ import annotations

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
    if isinstance(settings, ByColumn):
        owner, about = _without_small(owner, about, settings.validation)
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
    without_holder = sorted(set(range(len(values))) - set(labels_held.ravel().tolist()))
    if without_holder:
        about["left_out"] = {
            "samples": int((owner == deal.NOBODY).sum()),
            "reason": f"clients * labels < {len(values)}: nobody holds the labels "
            + ", ".join(str(int(values[v])) for v in without_holder),
        }
    if settings.labels == 1:
        about["truth"] = tuple(int(values[v]) for v in labels_held[:, 0])
    return owner, about


def _by_majority(settings: Majority, samples: _Samples, draw: np.random.Generator) -> Dealt:
    clients = settings.clients
    labels = _need_labels(samples, settings)
    values = np.unique(labels)
    owner = deal.deal_majority(labels, values, clients, settings.p, draw)
    about: dict[str, Any] = {}
    left = int((owner == deal.NOBODY).sum())
    if left:
        about["left_out"] = {
            "samples": left,
            "reason": f"each client has {(len(owner) - left) // clients} samples, the most that gives all the same "
            "number and the part p from a cluster of their own",
        }
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
    listed = prepared.manifest.extra.get("clients", []) if settings.column == "client" else []
    names = [str(listed[int(v)]) if 0 <= int(v) < len(listed) else str(v) for v in values]
    owner = owner.astype(np.int64)[samples.indices]
    about: dict[str, Any] = {}
    if settings.clients > len(values):
        raise PartitionError(
            f"partition.clients is {settings.clients}, but column {settings.column!r} of {prepared.manifest.name!r} "
            f"names {len(values)} clients: expected at most that, or 0 for all"
        )
    if settings.clients and settings.clients < len(values):
        kept = np.sort(draw.choice(len(values), size=settings.clients, replace=False))
        renumbered = np.full(len(values), deal.NOBODY, dtype=np.int64)
        renumbered[kept] = np.arange(len(kept))
        owner = renumbered[owner]
        names = [names[k] for k in kept]
        about["left_out"] = {
            "samples": int((owner == deal.NOBODY).sum()),
            "reason": f"{len(kept)} of {len(values)} clients take part",
        }
    return owner, {**about, "names": tuple(names), "clients": len(names)}


def _need_labels(samples: _Samples, settings: PartitionSettings) -> np.ndarray:
    if samples.labels is None:
        raise PartitionError(
            f"scheme {settings.kind!r} needs labels, and data set {samples.prepared.manifest.name!r} has none: use "
            "'iid', or 'by_column' where the data name their clients"
        )
    return samples.labels


def _without_small(owner: np.ndarray, about: dict[str, Any], validation: float) -> tuple[np.ndarray, dict[str, Any]]:
    """Leave out natural clients with fewer samples than a method can learn from.

    Args:
        owner: the client of each sample, int64 (n,).
        about: names and number of the clients, and what is left out already.
        validation: share of each client's samples that is held out.

    Raises:
        PartitionError: fewer than two of several clients would remain.
    """
    names = about["names"]
    sizes = np.bincount(owner[owner >= 0], minlength=len(names))
    needed = MIN_TRAIN_SAMPLES + (validation > 0)
    small = sizes < needed
    if not small.any():
        return owner, about
    left = first_of([f"{names[k]!r}" for k in np.flatnonzero(small)])
    count = int(small.sum())
    too_few = f"fewer than {needed} samples"
    if (~small).sum() < min(2, len(names)):
        raise PartitionError(
            f"{count} of {len(names)} clients have {too_few} ({left}), and at least 2 clients are needed: add samples "
            "of them to the data set, raise data.limit, lower partition.validation, or set partition.kind to iid"
        )
    number = np.cumsum(~small) - 1
    number[small] = deal.NOBODY
    kept = np.where(owner >= 0, number[owner], deal.NOBODY)
    reasons = [about["left_out"]["reason"]] if "left_out" in about else []
    left_out = {
        "samples": int((kept == deal.NOBODY).sum()),
        "reason": "; ".join([*reasons, f"{count} of {len(names)} clients have {too_few}: {left}"]),
        "clients": {names[k]: int(sizes[k]) for k in np.flatnonzero(small)},
    }
    remaining = tuple(name for name, leave in zip(names, small, strict=True) if not leave)
    return kept, {**about, "names": remaining, "clients": len(remaining), "left_out": left_out}


def _check_sizes(sizes: np.ndarray) -> None:
    """Refuse clients that cannot train: fewer than two samples."""
    small = np.flatnonzero(sizes < 2)
    if not len(small):
        return
    k = int(small[0])
    more = f", and {len(small) - 1} other clients have fewer than two" if len(small) > 1 else ""
    raise PartitionError(
        f"client {k} would have {'no sample' if sizes[k] == 0 else 'only one sample'}{more}: "
        "lower partition.clients, raise data.limit, or choose another partition.kind"
    )


def _hold_out(client: np.ndarray, clients: int, fraction: float, seed: int) -> np.ndarray:
    """Return which samples are for validation: a share of each client's, at least one, and never all.

    `client` is ascending, so that each client's samples are a run of rows.
    """
    validation = np.zeros(len(client), dtype=bool)
    if fraction <= 0:
        return validation
    starts = np.searchsorted(client, np.arange(clients + 1))
    for k in range(clients):
        size = int(starts[k + 1] - starts[k])
        count = min(max(round(size * fraction), 1), size - 1)
        # A stream per client: what one client holds out does not depend on the others.
        rng = Streams(seed, client=k).numpy("partition validation")
        validation[starts[k] + rng.choice(size, size=count, replace=False)] = True
    return validation
