"""Tables of the samples that a partition gives to each client."""

from __future__ import annotations

import numpy as np
import pandas as pd

from shoal.data.partition.table import Partition, Transformation
from shoal.data.sets.prepared import Prepared


def label_counts(partition: Partition, prepared: Prepared) -> np.ndarray:
    """Count samples per label and client, training and validation together, int64 (labels, clients).

    Labels are those of the data set, before planted label maps. Without labels there are zero rows.
    """
    if prepared.train_y is None:
        return np.zeros((0, partition.clients), dtype=np.int64)
    labels = np.asarray(prepared.train_y)
    rows = prepared.manifest.classes or int(labels.max()) + 1
    counts = np.zeros((rows, partition.clients), dtype=np.int64)
    np.add.at(counts, (labels[partition.sample], partition.client), 1)
    return counts


def summary(partition: Partition, prepared: Prepared) -> pd.DataFrame:
    """Return a table with one row a client.

    Columns: client, name (natural clients only), train, validation, label_0 ... (samples of each label, training and
    validation together), transformation (in words), group (the planted group, where there is one).
    """
    clients = np.arange(partition.clients)
    table: dict[str, object] = {"client": clients}
    if partition.client_names:
        table["name"] = list(partition.client_names)
    table["train"] = partition.counts()
    table["validation"] = np.bincount(partition.client[partition.validation], minlength=partition.clients)
    for label, row in enumerate(label_counts(partition, prepared)):
        table[f"label_{label}"] = row
    present = np.zeros((partition.clients, len(partition.transformations)), dtype=bool)
    present[partition.client, partition.transformation] = True
    table["transformation"] = [
        "; ".join(describe(partition.transformations[number]) for number in np.flatnonzero(row)) for row in present
    ]
    if partition.truth:
        table["group"] = list(partition.truth)
    return pd.DataFrame(table)


def describe(change: Transformation) -> str:
    """Describe a planted transformation in words.

    >>> describe(Transformation("label_swap", 0, (1, 0, 2)))
    'labels 0->1 1->0'
    """
    parts = []
    if change.degrees % 360:
        parts.append(f"rotated by {change.degrees}")
    moved = [f"{old}->{new}" for old, new in enumerate(change.labels) if old != new]
    if moved:
        parts.append("labels " + " ".join(moved))
    return ", ".join(parts) or "none"
