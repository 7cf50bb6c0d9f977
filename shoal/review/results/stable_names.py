"""The names of the clusters of a night's run: those of the champion's clusters that they continue.

A night says in an event of its run which run is the champion. The names are found when the run's cluster table is
written, kept in clusters.json, and are the column `cluster_id` of the table, so that a number means the same cluster
from night to night.

A model numbers its clusters as it pleases. Each new cluster gets the name of the old cluster that it continues, by the
samples that are in both; names are whole numbers, and a name is never given to another cluster. The pairs are those
with the largest sum of Jaccard indices (Kuhn 1955).

Symbols in shapes: a old clusters, b new clusters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from shoal.methods.clustering.agreement import counts

KEEP = 0.2
"""Smallest Jaccard index of two clusters of which the new one keeps the name."""
PART = 0.2
"""Smallest share of a cluster's samples that says where they came from, or went."""

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
class ClusterChange:
    """A cluster that is new or gone.

    Args:
        kind: new or gone.
        before: the name of the old cluster that is gone; of a new cluster, the old ones of which it has many samples.
        after: the name of the new cluster; of one that is gone, those that have many of its samples.
        samples: number of its samples.
    """

    kind: Literal["new", "gone"]
    before: tuple[int, ...]
    after: tuple[int, ...]
    samples: int

    def sentence(self) -> str:
        """Return the change in one sentence.

        >>> ClusterChange("new", (), (12,), 45).sentence()
        'cluster 12 is new, with 45 samples'
        >>> ClusterChange("new", (7,), (12,), 45).sentence()
        'cluster 12 is new, with 45 samples, many of them from cluster 7'
        >>> ClusterChange("gone", (4,), (2, 9), 30).sentence()
        'cluster 4 is gone: its samples are now in clusters 2 and 9'
        """
        if self.kind == "new":
            origin = f", many of them from {_listed(self.before)}" if self.before else ""
            return f"cluster {self.after[0]} is new, with {self.samples:,} sample{'s' * (self.samples != 1)}{origin}"
        where = f": its samples are now in {_listed(self.after)}" if self.after else ""
        return f"cluster {self.before[0]} is gone{where}"


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


def first_names(clusters: int) -> StableNames:
    """Return the names of the first clusters: their numbers."""
    return StableNames(tuple(range(clusters)), clusters)


def names_after(old: pd.DataFrame, names: StableNames, table: pd.DataFrame, clusters: int) -> StableNames:
    """Return the names of new clusters: those of the old clusters that they continue, or new names.

    Args:
        old: the champion's cluster table.
        names: of its clusters.
        table: the new cluster table, a row a sample.
        clusters: how many new clusters there are.
    """
    count = len(names.names)
    old_sizes = np.bincount(old["cluster"], minlength=count).tolist()
    sizes = np.bincount(table["cluster"], minlength=clusters).tolist()
    return name_clusters(names, old_sizes, shared_samples(old, table, count, clusters), sizes)


def name_clusters(old: StableNames, old_sizes: Sequence[int], shared: np.ndarray, sizes: Sequence[int]) -> StableNames:
    """Return the names of new clusters: those of the old ones that they continue, and new ones.

    Args:
        old: the names of the old clusters.
        old_sizes: samples of each.
        shared: number of samples that are in old cluster i and in new cluster j, int (a, b).
        sizes: samples of each new cluster, those included that no old cluster has.
    """
    continued = _pairs(old_sizes, shared, sizes)
    names = []
    next_name = old.next_name
    for new in range(len(sizes)):
        if new in continued:
            names.append(old.names[continued[new]])
        else:
            names.append(next_name)
            next_name += 1
    changes = []
    for new, size in enumerate(sizes):
        if size and new not in continued:
            origins = np.flatnonzero(shared[:, new] >= PART * size)
            changes.append(ClusterChange("new", _named(old.names, origins), (names[new],), int(size)))
    for gone, size in enumerate(old_sizes):
        if size and gone not in continued.values():
            where = np.flatnonzero(shared[gone] >= PART * max(1, shared[gone].sum()))
            changes.append(ClusterChange("gone", (old.names[gone],), _named(names, where), int(size)))
    return StableNames(tuple(names), next_name, changes=tuple(changes))


def shared_samples(old: pd.DataFrame, new: pd.DataFrame, old_clusters: int, new_clusters: int) -> np.ndarray:
    """Return how many samples are in old cluster i and in new cluster j, int (a, b).

    A sample is known by its file where all samples of both tables have one, else by its part and row: a set that grows
    keeps the rows of its samples.
    """
    keys = ["part", "sample"]
    if all(table["file"].notna().all() and table["file"].is_unique for table in (old, new)):
        keys = ["file"]
    both = old[[*keys, "cluster"]].merge(new[[*keys, "cluster"]], on=keys, suffixes=("_old", "_new"))
    return counts(both["cluster_old"].to_numpy(), both["cluster_new"].to_numpy(), old_clusters, new_clusters)


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


def _pairs(old_sizes: Sequence[int], shared: np.ndarray, sizes: Sequence[int]) -> dict[int, int]:
    """Return the old cluster that each new one continues, by shared samples, and empty clusters in pairs.

    Nothing tells empty clusters apart, and they need no new names.
    """
    from scipy.optimize import linear_sum_assignment

    union = shared.sum(1, keepdims=True) + shared.sum(0, keepdims=True) - shared
    jaccard = shared / np.maximum(union, 1)
    jaccard[np.ix_(np.equal(old_sizes, 0), np.equal(sizes, 0))] = KEEP
    rows, columns = linear_sum_assignment(jaccard, maximize=True)
    return {int(j): int(i) for i, j in zip(rows, columns, strict=True) if jaccard[i, j] >= KEEP}


def _named(names: Sequence[int], places: np.ndarray) -> tuple[int, ...]:
    return tuple(names[place] for place in places.tolist())


def _listed(names: Sequence[int]) -> str:
    """Return names of clusters in words."""
    if len(names) == 1:
        return f"cluster {names[0]}"
    return f"clusters {', '.join(map(str, names[:-1]))} and {names[-1]}"
