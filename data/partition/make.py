"""Making a partition: which samples, dealt to whom, what is held out, and what is planted on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from shoal.core.errors import DataError, PartitionError
from shoal.core.streams import Streams
from shoal.data.partition import deal
from shoal.data.partition.schemes import (
    ByColumn,
    Dirichlet,
    LabelsPerClient,
    Majority,
    PartitionSettings,
    check_settings,
)
from shoal.data.partition.table import Partition
from shoal.data.partition.transform import client_groups, group_transformations, numbered
from shoal.data.prepared import Prepared

MIN_TRAIN_SAMPLES = 2
"""Training samples that a client needs: with one there is nothing to contrast, and no variance."""
MAX_NAMES = 10
"""Clients that a sentence names at most."""


def make_partition(
    settings: PartitionSettings, prepared: Prepared, *, limit: int | None = None, seed: int = 0
) -> Partition:
    """Give the training samples of a set to clients; the same arguments give the same partition.

    Args:
        settings: one of the schemes of data/partition/schemes.py.
        prepared: the data set.
        limit: keep a random subset of at most so many training samples.
        seed: of every draw.

    Returns:
        Each sample at most once, sorted by client, then sample. `settings` holds the scheme, limit, seed and, where
        samples of the set were given to nobody, `left_out`.

    Raises:
        PartitionError: settings out of bounds, labels or a column missing, more clients than samples, or a client left
            with fewer than two samples. Of clients that the data themselves have, those with fewer than two samples,
            or three with a validation split, are left out instead, as long as there are two others.
    """
    check_settings(settings)
    streams = Streams(seed)
    samples = _limited(len(prepared.train_x), limit, streams)
    labels = None if prepared.train_y is None else np.asarray(prepared.train_y)[samples]
    if settings.clients > len(samples):
        raise PartitionError(
            f"{settings.clients} clients cannot share {len(samples)} samples: lower partition.clients"
            + ("" if limit is None else " or raise data.limit")
        )
    changes = group_transformations(settings, prepared.manifest, streams.numpy("partition transformations"))
    listed, numbers = numbered(changes)
    planted = settings.transform != "none"
    # With groups per sample, a sample's group is part of the data before anybody gets it: even and random.
    group = None
    if planted and settings.per_sample:
        group = deal.deal_iid(labels, len(samples), len(changes), streams.numpy("partition groups"))

    owner, about = _deal(settings, prepared, samples, labels, group, streams)
    if isinstance(settings, ByColumn):
        owner, about = _without_small(owner, about, settings.validation)
    names: tuple[str, ...] = about.pop("names", ())
    truth: tuple[int, ...] = about.pop("truth", ())
    clients = about.pop("clients", settings.clients)
    _check_sizes(np.bincount(owner[owner >= 0], minlength=clients))

    given = np.flatnonzero(owner >= 0)
    given = given[np.lexsort((samples[given], owner[given]))]
    client, sample = owner[given], samples[given]
    of_label = None
    if settings.stratified:
        if prepared.train_y is None:
            raise PartitionError(
                "partition.stratified holds out the same part of every label, and "
                f"{prepared.manifest.name!r} has none: leave it out"
            )
        of_label = np.asarray(prepared.train_y)[sample]
    transformation = np.zeros(len(given), dtype=np.int64)
    if group is not None:
        transformation = numbers[group[given]]
    elif planted:
        of_client = client_groups(settings, clients)
        transformation = numbers[of_client[client]]
        truth = tuple(int(g) for g in of_client)
    return Partition(
        prepared.manifest.name,
        prepared.manifest.digest,
        clients,
        sample,
        client,
        _hold_out(client, clients, settings.validation, seed, of_label),
        transformation,
        listed,
        {"kind": settings.kind, **asdict(settings), "limit": limit, "seed": seed, **about},
        names,
        truth,
    )


def _limited(n: int, limit: int | None, streams: Streams) -> np.ndarray:
    """Indices of the training samples that take part, ascending, int64."""
    if limit is not None and limit < 1:
        raise PartitionError(f"limit is {limit}, expected at least 1 sample, or none for all")
    if limit is None or limit >= n:
        return np.arange(n, dtype=np.int64)
    return np.sort(streams.numpy("partition limit").choice(n, size=limit, replace=False)).astype(np.int64)


def _deal(
    settings: PartitionSettings,
    prepared: Prepared,
    samples: np.ndarray,
    labels: np.ndarray | None,
    group: np.ndarray | None,
    streams: Streams,
) -> tuple[np.ndarray, dict[str, Any]]:
    """The client of each sample, and what else the scheme says: names, truth, clients, left_out."""
    draw = streams.numpy(f"partition {settings.kind}")
    about: dict[str, Any] = {}
    clients = settings.clients
    if isinstance(settings, ByColumn):
        return _by_column(settings, prepared, samples, draw)
    if isinstance(settings, Dirichlet):
        needed = _need_labels(labels, prepared, settings)
        owner = deal.deal_dirichlet(needed, clients, settings.beta, settings.minimum, draw)
    elif isinstance(settings, LabelsPerClient):
        needed = _need_labels(labels, prepared, settings)
        values = np.unique(needed)
        held = deal.label_holders(len(values), clients, settings.labels, draw)
        owner = deal.deal_labels(needed, values, held, draw)
        nobody = sorted(set(range(len(values))) - set(held.ravel().tolist()))
        if nobody:
            about["left_out"] = {
                "samples": int((owner == deal.NOBODY).sum()),
                "reason": f"clients * labels < {len(values)}: nobody holds the labels "
                + ", ".join(str(int(values[v])) for v in nobody),
            }
        if settings.labels == 1:
            about["truth"] = tuple(int(values[v]) for v in held[:, 0])
    elif isinstance(settings, Majority):
        clusters = _need_labels(labels, prepared, settings) if group is None else group
        values = np.unique(clusters)
        owner = deal.deal_majority(clusters, values, clients, settings.p, draw)
        left = int((owner == deal.NOBODY).sum())
        if left:
            about["left_out"] = {
                "samples": left,
                "reason": f"each client has {(len(samples) - left) // clients} samples, the most that gives all the "
                "same number and the part p from a cluster of their own",
            }
        if settings.p > 0:
            about["truth"] = tuple(k % len(values) for k in range(clients))
    else:
        owner = deal.deal_iid(labels, len(samples), clients, draw)
    return owner, about


def _by_column(
    settings: ByColumn, prepared: Prepared, samples: np.ndarray, draw: np.random.Generator
) -> tuple[np.ndarray, dict[str, Any]]:
    try:
        column = prepared.column(settings.column)
    except DataError as error:
        raise PartitionError(f"partition.column: {error}") from error
    values, owner = np.unique(column, return_inverse=True)
    listed = prepared.manifest.extra.get("clients", []) if settings.column == "client" else []
    names = [str(listed[int(v)]) if 0 <= int(v) < len(listed) else str(v) for v in values]
    owner = owner.astype(np.int64)[samples]
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
        owner, names = renumbered[owner], [names[k] for k in kept]
        about["left_out"] = {
            "samples": int((owner == deal.NOBODY).sum()),
            "reason": f"{len(kept)} of {len(values)} clients take part",
        }
    return owner, {**about, "names": tuple(names), "clients": len(names)}


def _need_labels(labels: np.ndarray | None, prepared: Prepared, settings: PartitionSettings) -> np.ndarray:
    if labels is None:
        raise PartitionError(
            f"scheme {settings.kind!r} needs labels, and data set {prepared.manifest.name!r} has none: use 'iid', or "
            f"'by_column' where the data name their clients"
        )
    return labels


def _without_small(owner: np.ndarray, about: dict[str, Any], validation: float) -> tuple[np.ndarray, dict[str, Any]]:
    """Leave out the clients of the data that have fewer samples than a method can learn from.

    Args:
        owner: the client of each sample, int64 (n,).
        about: names and number of the clients, and what was left out before.
        validation: share of each client's samples that is held out.

    Raises:
        PartitionError: fewer than two of several clients would be left.
    """
    names = about["names"]
    sizes = np.bincount(owner[owner >= 0], minlength=len(names))
    needed = MIN_TRAIN_SAMPLES + (validation > 0)
    small = sizes < needed
    if not small.any():
        return owner, about
    who = named([f"{names[k]!r}" for k in np.flatnonzero(small)])
    count = int(small.sum())
    too_few = f"fewer than {needed} samples"
    if (~small).sum() < min(2, len(names)):
        raise PartitionError(
            f"{count} of {len(names)} clients have {too_few} ({who}), and at least 2 clients are needed: add samples "
            "of them to the data set, raise data.limit, lower partition.validation, or set partition.kind to iid"
        )
    number = np.cumsum(~small) - 1
    number[small] = deal.NOBODY
    kept = np.where(owner >= 0, number[owner], deal.NOBODY)
    reasons = [about["left_out"]["reason"]] if "left_out" in about else []
    left_out = {
        "samples": int((kept == deal.NOBODY).sum()),
        "reason": "; ".join([*reasons, f"{count} of {len(names)} clients have {too_few}: {who}"]),
        "clients": {names[k]: int(sizes[k]) for k in np.flatnonzero(small)},
    }
    remaining = tuple(name for name, leave in zip(names, small, strict=True) if not leave)
    return kept, {**about, "names": remaining, "clients": len(remaining), "left_out": left_out}


def named(names: Sequence[str]) -> str:
    """Return the first names of a list, and how many more there are."""
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


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


def _hold_out(
    client: np.ndarray, clients: int, fraction: float, seed: int, label: np.ndarray | None = None
) -> np.ndarray:
    """Which samples are for validation: of each client's the given part, at least one, and never all.

    `client` is ascending, so each client's samples are a run of rows. With `label`, of each row, every label gives its
    part: rows in the order of their rank within their label, ties drawn, are held out from the front.
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
        if label is None:
            chosen = rng.choice(size, size=count, replace=False)
        else:
            chosen = np.argsort(_ranks(label[starts[k] : starts[k + 1]], rng), kind="stable")[:count]
        validation[starts[k] + chosen] = True
    return validation


def _ranks(label: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each row's place, between 0 and 1, in a random order of the rows of its label, plus a draw that breaks ties."""
    place = np.empty(len(label))
    for value in np.unique(label):
        rows = np.flatnonzero(label == value)
        place[rows] = (rng.permutation(len(rows)) + rng.random()) / len(rows)
    return place
