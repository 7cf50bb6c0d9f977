"""The clusters of a site's own samples: a table that stays at the site, and counts for the lead.

    runs/ID/clusters.parquet    client and file by their names at the site, part, number in it, cluster, confidence

Symbols in shapes: c clusters, k clients of the site.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from shoal.core.errors import DataError
from shoal.data.sets.elsewhere import clients_of_site
from shoal.data.sets.prepared import PreparedSet
from shoal.data.sets.sample_files import sample_files
from shoal.engine.messages.wire import AssignAnswer
from shoal.engine.store.codec import write_atomic
from shoal.engine.store.opened_run import OpenedRun
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.clustering.agreement import counts
from shoal.methods.scores.clustering import label_table
from shoal.methods.scores.evaluation import true_labels
from shoal.methods.scores.withheld import WITHHELD, withhold

TABLE = "clusters.parquet"


def write_table(opened: OpenedRun, own: PreparedSet, found: AssignAnswer) -> None:
    """Write the table of a site's samples.

    Args:
        opened: the run at the site.
        own: the site's own set, which knows names.
        found: the clusters of its samples, training samples in the order of the set, then test samples.
    """
    data, partition = opened.judged_here
    sample = np.sort(partition.sample)
    prepared = opened.prepared
    numbers = clients_of_site(prepared.manifest, opened.sites[opened.here[0]])
    train = own_rows(prepared, own, numbers, "train")
    test = own_rows(prepared, own, numbers, "test")
    rows = np.concatenate([train[sample], own.manifest.train + test[test >= 0]])
    files = sample_files(own)
    assert files is not None, "a set of the user's own has them"
    columns = {
        "client_name": files["client"].to_numpy()[rows],
        "part": np.repeat(["train", "test"], [len(sample), len(data.test_x)]),
        "sample": files["index"].to_numpy()[rows],
        "file": files["file"].to_numpy()[rows],
        "cluster": found.cluster.astype(np.int32),
        "confidence": found.confidence.astype(np.float32),
    }
    if found.distance is not None:
        columns["distance"] = found.distance.astype(np.float32)
    write_atomic(opened.run.path / TABLE, pd.DataFrame(columns).to_parquet(index=False), sync=False)


def site_table(run: RunFolder) -> pd.DataFrame:
    """Return the table of a site's samples.

    Raises:
        DataError: there is none yet.
    """
    if not (run.path / TABLE).exists():
        raise DataError(f"run {run.name} has no clusters here yet: the lead asks for them after the last round")
    return pd.read_parquet(run.path / TABLE)


def own_rows(prepared: PreparedSet, own: PreparedSet, numbers: range, part: str) -> np.ndarray:
    """Return the number of each sample of a part in the site's own set, int64; -1 for those of other sites."""
    owner = prepared.owners(part)
    rows = np.full(len(owner), -1)
    for place, client in enumerate(numbers):
        rows[owner == client] = np.flatnonzero(own.owners(part) == place)
    return rows


def told_counts(opened: OpenedRun, found: AssignAnswer, least: int) -> np.ndarray:
    """Return what a site tells of `counts_of`: none where they would tell small cells of clusters by labels.

    Args:
        opened: the run at the site.
        found: the clusters of its samples.
        least: samples of a cell that may be told.
    """
    counted = counts_of(opened, found)
    labels = true_labels(opened.evaluation(0, final=True))
    if labels is not None:
        table = label_table(found.cluster, labels.cpu().numpy(), found.clusters, opened.spec.classes or 0)
        if (withhold(table, least) == WITHHELD).any():
            return np.full_like(counted, WITHHELD)
    return withhold(counted, least, rows_known=True)


def counts_of(opened: OpenedRun, found: AssignAnswer) -> np.ndarray:
    """Return the number of samples of each client in each cluster, training and test samples together.

    Returns:
        int64 (k + 1, c), clients in the order of their ids; the last row is of clients that are too small to take part.
    """
    partition = opened.judged_here[1]
    prepared = opened.prepared
    row = np.searchsorted(opened.here, partition.client[np.argsort(partition.sample, kind="stable")])
    numbers = clients_of_site(prepared.manifest, opened.sites[opened.here[0]])
    row_of = np.full(numbers.stop, len(opened.here))
    row_of[prepared.owners("train")[np.sort(partition.sample)]] = row
    test = prepared.owners("test")
    rows = np.append(row, row_of[test[np.isin(test, numbers)]])
    return counts(rows, found.cluster, len(opened.here) + 1, found.clusters)
