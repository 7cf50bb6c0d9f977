"""Tables of the samples that a partition gives to each client."""

from __future__ import annotations

import numpy as np
import pandas as pd

from shoal.data.partition.table import Partition
from shoal.data.sets.prepared import PreparedSet


def label_counts(partition: Partition, prepared: PreparedSet) -> np.ndarray:
    """Count samples per label and client, training and validation together, int64 (labels, clients).

    Without labels there are zero rows.
    """
    if prepared.train_y is None:
        return np.zeros((0, partition.clients), dtype=np.int64)
    labels = np.asarray(prepared.train_y)
    rows = prepared.manifest.classes or int(labels.max()) + 1
    counts = np.zeros((rows, partition.clients), dtype=np.int64)
    np.add.at(counts, (labels[partition.sample], partition.client), 1)
    return counts


def summary(partition: Partition, prepared: PreparedSet) -> pd.DataFrame:
    """Return a table with one row a client.

    Columns: client, name (natural clients only), train, validation, label_0 ... (samples of each label, training and
    validation together), group (the planted group, where there is one).
    """
    clients = np.arange(partition.clients)
    table: dict[str, object] = {"client": clients}
    if partition.client_names:
        table["name"] = list(partition.client_names)
    table["train"] = partition.counts()
    table["validation"] = np.bincount(partition.client[partition.validation], minlength=partition.clients)
    for label, row in enumerate(label_counts(partition, prepared)):
        table[f"label_{label}"] = row
    if partition.truth:
        table["group"] = list(partition.truth)
    return pd.DataFrame(table)
