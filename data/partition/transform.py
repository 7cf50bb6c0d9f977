"""Planted transformations: rotations and label maps, one per group of clients."""

from __future__ import annotations

import numpy as np

from shoal.core.errors import PartitionError
from shoal.data.partition.schemes import IID, PartitionSettings
from shoal.data.partition.table import Transformation
from shoal.data.sets.prepared import Manifest

_MAX_REDRAWS = 1000


def group_transformations(
    settings: PartitionSettings, manifest: Manifest, draw: np.random.Generator
) -> list[Transformation]:
    """Return the transformation of each group.

    - rotation: group g is turned counter-clockwise by g * 360 / groups degrees; 2 or 4 groups.
    - label_permutation: group 0 keeps its labels, each other group has a random permutation of its own.
    - label_swap: group g swaps the labels 2g and 2g + 1, modulo the number of classes.

    Raises:
        PartitionError: the data set cannot be transformed in this way, or there are too many groups.
    """
    if not isinstance(settings, IID) or settings.transform == "none":
        return [Transformation()]
    groups = settings.groups
    name = settings.transform
    if name == "rotation":
        return _rotations(groups, manifest)
    classes = manifest.classes
    if classes is None or classes < 2:
        raise PartitionError(
            f"transform {name!r} needs labels of at least 2 classes, and data set {manifest.name!r} has "
            f"{'no labels' if classes is None else classes}: use 'none' or 'rotation'"
        )
    maps = _swaps(groups, classes) if name == "label_swap" else _permutations(groups, classes, draw)
    identity = tuple(range(classes))
    return [Transformation() if labels == identity else Transformation(name, 0, labels) for labels in maps]


def _rotations(groups: int, manifest: Manifest) -> list[Transformation]:
    if manifest.kind != "image" or manifest.shape[-1] != manifest.shape[-2]:
        raise PartitionError(
            f"transform 'rotation' needs square images, and data set {manifest.name!r} holds {manifest.kind}s of "
            f"shape {manifest.shape}"
        )
    if groups not in (2, 4):
        raise PartitionError(f"groups is {groups}, expected 2 or 4: images are rotated by multiples of 90 degrees")
    step = 360 // groups
    return [Transformation("rotation", g * step) if g else Transformation() for g in range(groups)]


def _swaps(groups: int, classes: int) -> list[tuple[int, ...]]:
    maps = []
    for g in range(groups):
        a = 2 * g % classes
        b = (2 * g + 1) % classes
        labels = list(range(classes))
        labels[a], labels[b] = b, a
        maps.append(tuple(labels))
    if len(set(maps)) < groups:
        raise PartitionError(
            f"{groups} groups cannot each swap a pair of labels of their own out of {classes} classes: lower groups"
        )
    return maps


def _permutations(groups: int, classes: int, draw: np.random.Generator) -> list[tuple[int, ...]]:
    maps = [tuple(range(classes))]
    for _ in range(groups + _MAX_REDRAWS):
        if len(maps) == groups:
            return maps
        drawn = tuple(int(label) for label in draw.permutation(classes))
        if drawn not in maps:
            maps.append(drawn)
    if len(maps) == groups:
        return maps
    raise PartitionError(
        f"{groups} distinct permutations of {classes} labels were not found in {_MAX_REDRAWS} draws: lower groups"
    )


def client_groups(groups: int, clients: int) -> np.ndarray:
    """Return the planted group of each client, k * groups // clients, int64 (clients,).

    Raises:
        PartitionError: there are fewer clients than groups.
    """
    if groups > clients:
        raise PartitionError(f"groups is {groups} with {clients} clients: expected at most one group per client")
    return np.arange(clients, dtype=np.int64) * groups // clients


def numbered(transformations: list[Transformation]) -> tuple[tuple[Transformation, ...], np.ndarray]:
    """Return the table's list, which begins with no transformation, and the number of each group's entry."""
    listed = [Transformation()]
    numbers = []
    for change in transformations:
        if change not in listed:
            listed.append(change)
        numbers.append(listed.index(change))
    return tuple(listed), np.asarray(numbers, dtype=np.int64)
