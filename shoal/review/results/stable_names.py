"""The names of the clusters of a night's run: those of the champion's clusters that they continue.

A night says in an event of its run which run is the champion. The names are found when the run's cluster table is
written, kept in clusters.json, and are the column `cluster_id` of the table, so that a number means the same cluster
from night to night (`shoal.methods.scores.cluster_names`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from shoal.methods.scores.cluster_names import ClusterChange, OldClusters, name_clusters

NIGHT = "night_starts"
"""Event of a run: a night began it; the entry `champion` names the run whose clusters give the names."""
DECIDED = "night_decided"
"""Event of a run: the decision between it and the champion."""
CHANGED = "cluster_changed"
"""Event of a run: what became of a cluster of the champion."""
NAME = "cluster_id"
"""The column of cluster tables with these names."""
NAME_MEANING = (
    "the number that the cluster keeps from night to night, in clusters.parquet, `shoal predict` and `assign` too"
)
"""The meaning of the column, in words."""


@dataclass(frozen=True)
class StableNames:
    """The names of a run's clusters.

    Args:
        names: of each cluster, by its number in the model.
        next_name: the smallest number that no cluster ever had.
        before: the run whose clusters gave the names; None where these are the first.
        changes: what became of that run's clusters.
    """

    names: tuple[int, ...]
    next_name: int
    before: str | None = None
    changes: tuple[ClusterChange, ...] = ()


@dataclass(frozen=True)
class NamedTable:
    """A cluster table with the names of its clusters, from which the clusters of the next table get theirs.

    Args:
        run: the run's name.
        table: its cluster table.
        names: of its clusters.
    """

    run: str
    table: pd.DataFrame
    names: StableNames


def first_names(clusters: int) -> StableNames:
    """Return the names of the first clusters: their numbers."""
    return StableNames(tuple(range(clusters)), clusters)


def names_after(old: NamedTable, table: pd.DataFrame, clusters: int, taken: int) -> StableNames:
    """Return the names of new clusters: those of the old clusters that they continue, or new names.

    Args:
        old: the champion's clusters.
        table: the new cluster table, a row a sample.
        clusters: how many new clusters there are.
        taken: the smallest number that no cluster of any run has, so that a challenger that was not promoted does not
            share a name with a later one.
    """
    count = len(old.names.names)
    before = OldClusters(old.names.names, _sizes(old.table, count), max(old.names.next_name, taken))
    shared = shared_samples(old.table, table, count, clusters)
    found = name_clusters(before, shared, _sizes(table, clusters))
    return StableNames(found.names, found.next_name, old.run, found.changes)


def shared_samples(old: pd.DataFrame, new: pd.DataFrame, old_clusters: int, new_clusters: int) -> np.ndarray:
    """Return how many samples are in old cluster i and in new cluster j, int (a, b).

    A sample is known by its file where all samples of both tables have one, else by its part and row: a set that grows
    keeps the rows of its samples.
    """
    keys = ["part", "sample"]
    if all(table["file"].notna().all() and table["file"].is_unique for table in (old, new)):
        keys = ["file"]
    both = old[[*keys, "cluster"]].merge(new[[*keys, "cluster"]], on=keys, suffixes=("_old", "_new"))
    counts = np.zeros((old_clusters, new_clusters), dtype=np.int64)
    np.add.at(counts, (both["cluster_old"].to_numpy(), both["cluster_new"].to_numpy()), 1)
    return counts


def with_names(table: pd.DataFrame, names: StableNames) -> pd.DataFrame:
    """Return a cluster table with the names of its clusters in the column `NAME`."""
    return table.assign(**{NAME: np.asarray(names.names, dtype=np.int32)[table["cluster"].to_numpy()]})


def with_stable_numbers(table: pd.DataFrame) -> pd.DataFrame:
    """Return a cluster table whose column `cluster` has the numbers that nights keep, where the table has them.

    All that people read names clusters by these numbers; the model's own numbers stay in files.
    """
    if NAME not in table:
        return table
    return table.assign(cluster=table[NAME])


def _sizes(table: pd.DataFrame, clusters: int) -> tuple[int, ...]:
    return tuple(int(size) for size in np.bincount(table["cluster"].to_numpy(), minlength=clusters))
