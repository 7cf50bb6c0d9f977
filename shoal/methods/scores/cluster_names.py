"""Names that clusters keep from one training to the next, and what became of each: new, gone, split or merged.

A model numbers its clusters as it pleases. Here each new cluster gets the name of the old cluster that it continues, by
the samples that are in both; names are whole numbers, and a name is never given to another cluster. The pairs are those
with the largest sum of Jaccard indices (Kuhn 1955). Clusters that share no sample with any other are paired by their
centres. The changes are the external transitions of Spiliopoulou et al. 2006 (MONIC).

Symbols in shapes: a old clusters, b new clusters, d features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

KEEP = 0.2
"""Smallest Jaccard index of two clusters of which the new one keeps the name."""
MOST = 0.5
"""Share of a cluster's samples from which on it is part of a split, or goes into a merged cluster."""
PART = 0.2
"""Smallest share of the split cluster, or of the merged one, that counts as a part of it."""
NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")

Kind = Literal["new", "gone", "split", "merged"]


@dataclass(frozen=True)
class ClusterChange:
    """What became of clusters.

    Args:
        kind: new, gone, split or merged.
        before: names of the old clusters.
        after: names of the new ones; of a cluster that is gone, those that have a part of its samples.
        samples: number of samples: of the new cluster; of the old cluster that is gone or split; of the merged one.
    """

    kind: Kind
    before: tuple[int, ...]
    after: tuple[int, ...]
    samples: int

    def sentence(self) -> str:
        """Return the change in one sentence.

        >>> ClusterChange("split", (7,), (7, 12), 90).sentence()
        'cluster 7 split in two: 7 and 12'
        >>> ClusterChange("merged", (3, 5), (3,), 80).sentence()
        'clusters 3 and 5 merged into cluster 3'
        >>> ClusterChange("new", (), (12,), 45).sentence()
        'cluster 12 is new, with 45 samples'
        >>> ClusterChange("gone", (4,), (2, 9), 30).sentence()
        'cluster 4 is gone: its samples are now in clusters 2 and 9'
        """
        if self.kind == "new":
            return f"cluster {self.after[0]} is new, with {self.samples:,} sample{'s' * (self.samples != 1)}"
        if self.kind == "split":
            count = len(self.after)
            words = NUMBERS[count - 2] if count - 2 < len(NUMBERS) else f"{count} parts"
            return f"cluster {self.before[0]} split in {words}: {_listed(self.after)}"
        if self.kind == "merged":
            return f"clusters {_listed(self.before)} merged into cluster {self.after[0]}"
        if not self.after:
            return f"cluster {self.before[0]} is gone"
        where = f"cluster{'s' * (len(self.after) != 1)} {_listed(self.after)}"
        return f"cluster {self.before[0]} is gone: its samples are now in {where}"


@dataclass(frozen=True)
class OldClusters:
    """The clusters that give the names.

    Args:
        names: of each.
        sizes: samples of each.
        next_name: the smallest number that no cluster ever had.
        centres: float (a, d); None where clusters have none.
    """

    names: tuple[int, ...]
    sizes: tuple[int, ...]
    next_name: int
    centres: np.ndarray | None = None


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


def name_clusters(
    old: OldClusters, shared: np.ndarray, sizes: Sequence[int], centres: np.ndarray | None = None
) -> NamedClusters:
    """Name new clusters after the old ones that they continue.

    Args:
        old: the old clusters.
        shared: number of samples that are in old cluster i and in new cluster j, int (a, b).
        sizes: samples of each new cluster, those included that no old cluster has.
        centres: of the new clusters, float (b, d), in the same space as the old ones; None where they have none.
    """
    continued = _pairs(shared)
    continued |= _pairs_by_centres(old, shared, centres, set(continued), set(continued.values()))
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


def _pairs_by_centres(
    old: OldClusters, shared: np.ndarray, centres: np.ndarray | None, new_done: set[int], old_done: set[int]
) -> dict[int, int]:
    """Return pairs of clusters without shared samples of which each centre is the nearest to the other."""
    if centres is None or old.centres is None or old.centres.shape[1:] != centres.shape[1:]:
        return {}
    distance = np.linalg.norm(old.centres[:, None] - centres[None], axis=2)
    pairs = {}
    for i in np.flatnonzero(shared.sum(1) == 0):
        j = int(distance[i].argmin())
        is_free = j not in new_done and int(i) not in old_done and shared[:, j].sum() == 0
        if is_free and int(distance[:, j].argmin()) == i:
            pairs[j] = int(i)
    return pairs


def _empty_pairs(old_sizes: Sequence[int], sizes: Sequence[int], continued: dict[int, int]) -> dict[int, int]:
    """Return pairs of empty clusters in their order: nothing tells them apart, and they need no new names."""
    taken = set(continued.values())
    old_empty = [i for i, size in enumerate(old_sizes) if size == 0 and i not in taken]
    new_empty = [j for j, size in enumerate(sizes) if size == 0 and j not in continued]
    return dict(zip(new_empty, old_empty, strict=False))


def _changes(
    old: OldClusters, shared: np.ndarray, sizes: Sequence[int], continued: dict[int, int], names: Sequence[int]
) -> list[ClusterChange]:
    """Return what became of the clusters: splits, merges, new ones, and those that are gone.

    Samples that only moved between clusters that keep their names are no split and no merge.
    """
    of_old = shared / np.maximum(shared.sum(1, keepdims=True), 1)
    of_new = shared / np.maximum(shared.sum(0, keepdims=True), 1)
    goes_on = {i: j for j, i in continued.items()}
    splits = _parts((of_new >= MOST) & (of_old >= PART), continued)
    merges = _parts(((of_old >= MOST) & (of_new >= PART)).T, goes_on)
    changes = []
    for i, parts in splits.items():
        changes.append(ClusterChange("split", (old.names[i],), _named(names, parts), int(shared[i].sum())))
    for j, parts in merges.items():
        changes.append(ClusterChange("merged", _named(old.names, parts), (names[j],), int(shared[:, j].sum())))
    for j in _unexplained(sizes, continued, splits, merges):
        changes.append(ClusterChange("new", (), (names[j],), int(sizes[j])))
    for i in _unexplained(old.sizes, goes_on, merges, splits):
        where = [int(j) for j in np.flatnonzero(of_old[i] >= PART)]
        changes.append(ClusterChange("gone", (old.names[i],), _named(names, where), int(old.sizes[i])))
    return changes


def _parts(is_part: np.ndarray, partner: dict[int, int]) -> dict[int, list[int]]:
    """Return the parts of each cluster on one side that has several on the other side.

    Args:
        is_part: whether a cluster of the other side (column) is a part of one of this side (row), bool.
        partner: of clusters of the other side, the cluster of this side that shares its name.
    """
    found = {}
    for row, columns in enumerate(is_part):
        parts = [int(column) for column in np.flatnonzero(columns) if partner.get(int(column), row) == row]
        if len(parts) > 1:
            found[row] = parts
    return found


def _unexplained(
    sizes: Sequence[int], partner: dict[int, int], other: dict[int, list[int]], own: dict[int, list[int]]
) -> list[int]:
    """Return the clusters of one side with samples whose name the other side lacks, and that no change explains.

    Args:
        sizes: samples of each cluster of this side.
        partner: of clusters of this side, the cluster of the other side that shares its name.
        other: clusters of the other side with their parts on this side.
        own: clusters of this side with their parts on the other side.
    """
    explained = {part for parts in other.values() for part in parts} | own.keys()
    return [place for place, size in enumerate(sizes) if size and place not in partner and place not in explained]


def _named(names: Sequence[int], places: Sequence[int]) -> tuple[int, ...]:
    return tuple(names[place] for place in places)


def _listed(names: Sequence[int]) -> str:
    """Return names as a list in words."""
    if len(names) == 1:
        return str(names[0])
    return f"{', '.join(map(str, names[:-1]))} and {names[-1]}"
