"""A contact sheet: some samples of an image set, or of each client of a partition, in one PNG."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from data.errors import DataError
from data.partition.table import Partition
from data.prepared import Prepared

_GAP = 2
_MIN_SIDE = 32


def contact_sheet(
    prepared: Prepared, path: Path, *, partition: Partition | None = None, columns: int = 12, rows: int = 8
) -> Path:
    """Draw training images on a grid: row by row the first of each label, or with a partition a row per client.

    Planted rotations are applied. Small images are enlarged by a whole factor.

    Args:
        prepared: a set of images.
        path: the PNG, whose folder is made.
        partition: show its first clients, one a row.
        columns: images in a row.
        rows: at most so many labels or clients.

    Raises:
        DataError: the set does not hold images.
    """
    if prepared.manifest.kind != "image":
        raise DataError(
            f"data set {prepared.manifest.name!r} holds {prepared.manifest.kind}s: only images can be drawn"
        )
    lines = _of_clients(prepared, partition, columns, rows) if partition else _of_labels(prepared, columns, rows)
    _, height, width = prepared.manifest.shape
    zoom = max(1, -(-_MIN_SIDE // min(height, width)))
    cell = (height * zoom + _GAP, width * zoom + _GAP)
    sheet = np.full((len(lines) * cell[0] + _GAP, columns * cell[1] + _GAP, 3), 255, dtype=np.uint8)
    for r, line in enumerate(lines):
        for c, image in enumerate(line):
            shown = np.broadcast_to(image.transpose(1, 2, 0), (height, width, 3))
            top, left = r * cell[0] + _GAP, c * cell[1] + _GAP
            large = shown.repeat(zoom, axis=0).repeat(zoom, axis=1)
            sheet[top : top + height * zoom, left : left + width * zoom] = large
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(sheet).save(path, format="PNG")
    return path


def _of_labels(prepared: Prepared, columns: int, rows: int) -> list[list[np.ndarray]]:
    if prepared.train_y is None:
        images = prepared.train_x[: columns * rows]
        return [list(images[start : start + columns]) for start in range(0, len(images), columns)]
    labels = np.asarray(prepared.train_y)
    values = np.unique(labels)[:rows]
    return [[prepared.train_x[i] for i in np.flatnonzero(labels == value)[:columns]] for value in values]


def _of_clients(prepared: Prepared, partition: Partition, columns: int, rows: int) -> list[list[np.ndarray]]:
    lines = []
    for client in range(min(partition.clients, rows)):
        line = []
        for row in np.flatnonzero(partition.client == client)[:columns]:
            turns = partition.transformations[partition.transformation[row]].degrees // 90
            image = torch.from_numpy(np.array(prepared.train_x[partition.sample[row]]))
            line.append(torch.rot90(image, turns, dims=(-2, -1)).numpy())
        lines.append(line)
    return lines
