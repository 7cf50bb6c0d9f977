"""Names that clusters keep from one training to the next, and which clusters are new or gone.

A model numbers its clusters as it pleases. Here each new cluster gets the name of the old cluster that it continues, by
the samples that are in both; names are whole numbers, and a name is never given to another cluster. The pairs are those
with the largest sum of Jaccard indices (Kuhn 1955).

Symbols in shapes: a old clusters, b new clusters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

KEEP = 0.2
"""Smallest Jaccard index of two clusters of which the new one keeps the name."""
PART = 0.2
"""Smallest share of a cluster's samples that says where they came from, or went."""


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
class OldClusters:
    """The clusters that give the names.

    Args:
        names: of each.
        sizes: samples of each.
        next_name: the smallest number that no cluster ever had.
    """

    names: tuple[int, ...]
    sizes: tuple[int, ...]
    next_name: int


@dataclass(frozen=True)
class NamedClusters:
    """The new clusters with their names.

    Args:
        names: of each.
        next_name: the smallest number that no cluster ever had.
        changes: what became of clusters.
    """

    names: tuple[int, ...]
    next_name: int
    changes: tuple[ClusterChange, ...]


def name_clusters(old: OldClusters, shared: np.ndarray, sizes: Sequence[int]) -> NamedClusters:
    """Name new clusters after the old ones that they continue.

    Args:
        old: the old clusters.
        shared: number of samples that are in old cluster i and in new cluster j, int (a, b).
        sizes: samples of each new cluster, those included that no old cluster has.
    """
    continued = _pairs(shared)
    continued |= _empty_pairs(old.sizes, sizes, continued)
    names = []
    next_name = old.next_name
    for new in range(len(sizes)):
        if new in continued:
            names.append(old.names[continued[new]])
        else:
            names.append(next_name)
            next_name += 1
    return NamedClusters(tuple(names), next_name, tuple(_changes(old, shared, sizes, continued, names)))


def _pairs(shared: np.ndarray) -> dict[int, int]:
    """Return the old cluster that each new one continues, by shared samples."""
    from scipy.optimize import linear_sum_assignment

    union = shared.sum(1, keepdims=True) + shared.sum(0, keepdims=True) - shared
    jaccard = shared / np.maximum(union, 1)
    rows, columns = linear_sum_assignment(jaccard, maximize=True)
    return {int(j): int(i) for i, j in zip(rows, columns, strict=True) if jaccard[i, j] >= KEEP}


def _empty_pairs(old_sizes: Sequence[int], sizes: Sequence[int], continued: dict[int, int]) -> dict[int, int]:
    """Return pairs of empty clusters in their order: nothing tells them apart, and they need no new names."""
    taken = set(continued.values())
    old_empty = [i for i, size in enumerate(old_sizes) if size == 0 and i not in taken]
    new_empty = [j for j, size in enumerate(sizes) if size == 0 and j not in continued]
    return dict(zip(new_empty, old_empty, strict=False))


def _changes(
    old: OldClusters, shared: np.ndarray, sizes: Sequence[int], continued: dict[int, int], names: Sequence[int]
) -> list[ClusterChange]:
    """Return the clusters with samples that are new, and those that are gone."""
    changes = []
    for new, size in enumerate(sizes):
        if size and new not in continued:
            origins = np.flatnonzero(shared[:, new] >= PART * size)
            changes.append(ClusterChange("new", _named(old.names, origins), (names[new],), int(size)))
    for gone, size in enumerate(old.sizes):
        if size and gone not in continued.values():
            where = np.flatnonzero(shared[gone] >= PART * max(1, shared[gone].sum()))
            changes.append(ClusterChange("gone", (old.names[gone],), _named(names, where), int(size)))
    return changes


def _named(names: Sequence[int], places: np.ndarray) -> tuple[int, ...]:
    return tuple(names[place] for place in places.tolist())


def _listed(names: Sequence[int]) -> str:
    """Return names of clusters in words."""
    if len(names) == 1:
        return f"cluster {names[0]}"
    return f"clusters {', '.join(map(str, names[:-1]))} and {names[-1]}"
