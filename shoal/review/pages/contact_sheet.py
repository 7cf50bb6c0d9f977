"""A contact sheet: some samples of each client or each label of an image set, in one PNG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from shoal.core.errors import DataError
from shoal.core.streams import Streams
from shoal.data.partition.table import Partition
from shoal.data.sets.prepared import Prepared
from shoal.engine.store.client_names import named
from shoal.engine.store.embedded import images_behind, why_no_images
from shoal.review.mlflow_log.run_names import shorten
from shoal.review.pages.window_pictures import HEIGHT, WIDTH, painter_of
from shoal.review.results.clusters import partition_client_names
from shoal.review.results.fonts import drawable, text_length, write

_GAP = 2
_MIN_SIDE = 32
"""Pixels of the shorter side of a small image on the sheet."""
_MAX_SIDE = 128
"""Pixels of the longer side of a large image on the sheet."""
_MAX_ROWS = 200
"""Rows of a sheet; its last line says how many are left out."""
_FONT = 13
_MAX_CHARACTERS = 32
"""Characters of a name that are drawn."""


@dataclass(frozen=True)
class Line:
    """A row of the sheet: a name and images uint8 (channels, height, width)."""

    name: str
    images: list[np.ndarray]


def contact_sheet(
    prepared: Prepared,
    path: Path,
    *,
    partition: Partition | None = None,
    columns: int = 12,
    seed: int = 0,
) -> Path:
    """Draw training images, or windows of series as line plots, on a grid with named rows.

    A row is of a client, or of a label where the data name no clients: a random draw of its images, in their order in
    the set.

    Planted rotations are applied. Small images are enlarged by a whole factor; large ones show every n-th pixel.

    Args:
        prepared: a set of images or windows.
        path: the PNG; its folder is made.
        partition: its clients are shown instead of those that the data name.
        columns: images in a row.
        seed: of the draws.

    Raises:
        DataError: the set holds neither images nor windows.
    """
    shown = images_behind(prepared)
    if shown is None:
        kind = prepared.manifest.kind
        reason = f"data set {prepared.manifest.name!r} holds {kind}s: expected a set of images or of windows"
        raise DataError(why_no_images(prepared) or reason)
    prepared = shown
    lines = _sheet_lines(prepared, partition, columns, seed)
    last = ""
    if len(lines) > _MAX_ROWS:
        last = f"and {len(lines) - _MAX_ROWS} more"
    lines = lines[:_MAX_ROWS]
    shape = prepared.manifest.shape
    if prepared.manifest.kind == "series":
        paint = painter_of(prepared)
        lines = [Line(line.name, [paint(window) for window in line.images]) for line in lines]
        shape = (3, HEIGHT, WIDTH)
    return draw_lines(lines, path, shape, last)


def draw_lines(lines: list[Line], path: Path, shape: tuple[int, ...], last: str) -> Path:
    """Draw named rows of images as a PNG.

    Args:
        lines: the rows.
        path: the PNG; its folder is made.
        shape: channels, height and width of every image.
        last: a line of text below the rows; may be empty.
    """
    _, height, width = shape
    step = -(-max(height, width) // _MAX_SIDE)
    height = -(-height // step)
    width = -(-width // step)
    zoom = max(1, min(-(-_MIN_SIDE // min(height, width)), _MAX_SIDE // max(height, width)))
    cell = (height * zoom + _GAP, width * zoom + _GAP)
    names = [shorten(drawable(line.name), _MAX_CHARACTERS) for line in lines]
    margin = max((int(text_length(name, _FONT)) for name in (*names, last)), default=0) + 8
    columns = max((len(line.images) for line in lines), default=0)
    below = 2 * _FONT * bool(last)
    sheet = np.full((len(lines) * cell[0] + _GAP + below, margin + columns * cell[1] + _GAP, 3), 255, dtype=np.uint8)
    for r, line in enumerate(lines):
        for c, image in enumerate(line.images):
            shown = np.broadcast_to(image.transpose(1, 2, 0)[::step, ::step], (height, width, 3))
            top = r * cell[0] + _GAP
            left = margin + c * cell[1] + _GAP
            large = shown.repeat(zoom, axis=0).repeat(zoom, axis=1)
            sheet[top : top + height * zoom, left : left + width * zoom] = large
    drawn = Image.fromarray(sheet)
    pen = ImageDraw.Draw(drawn)
    for r, name in enumerate(names):
        write(pen, (4, _GAP + r * cell[0] + height * zoom // 2), name, _FONT, "black", middle=True)
    if last:
        write(pen, (4, len(lines) * cell[0] + below // 2), last, _FONT, "black", middle=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.save(path, format="PNG")
    return path


def drawn_positions(positions: np.ndarray, count: int, seed: int, row: int) -> np.ndarray:
    """Return at most `count` positions of a row, a random draw in ascending order.

    Args:
        positions: int (n,), ascending.
        count: how many to draw.
        seed: of the draw.
        row: number of the client or label, for a draw of its own.
    """
    rng = Streams(seed, client=row).numpy("contact sheet")
    return np.sort(rng.choice(positions, min(count, len(positions)), replace=False))


def _sheet_lines(prepared: Prepared, partition: Partition | None, columns: int, seed: int) -> list[Line]:
    """Return a line a client, or a label where there are no clients; without labels some lines without a name."""
    if partition is not None:
        return _partition_lines(prepared, partition, columns, seed)
    if "client" in prepared.columns():
        clients = [str(name) for name in prepared.manifest.extra.get("clients", [])]
        return _group_lines(prepared, prepared.column("client"), clients, columns, seed)
    if prepared.train_y is not None:
        return _group_lines(prepared, np.asarray(prepared.train_y), prepared.manifest.class_names, columns, seed)
    shown = drawn_positions(np.arange(len(prepared.train_x)), columns * 8, seed, 0)
    images = [prepared.train_x[i] for i in shown]
    return [Line("", images[start : start + columns]) for start in range(0, len(images), columns)]


def _group_lines(prepared: Prepared, groups: np.ndarray, names: Sequence[str], columns: int, seed: int) -> list[Line]:
    """Return a line a group; `groups` holds the number of each sample's group, int (n,)."""
    lines = []
    for group in np.unique(groups).tolist():
        shown = drawn_positions(np.flatnonzero(groups == group), columns, seed, group)
        lines.append(Line(named(names, group), [prepared.train_x[i] for i in shown]))
    return lines


def _partition_lines(prepared: Prepared, partition: Partition, columns: int, seed: int) -> list[Line]:
    names = partition_client_names(partition)
    lines = []
    for client in range(partition.clients):
        images = []
        rows = np.arange(len(partition.client))[partition.rows(client)]
        for row in drawn_positions(rows, columns, seed, client):
            turns = partition.transformations[partition.transformation[row]].degrees // 90
            images.append(np.rot90(np.asarray(prepared.train_x[partition.sample[row]]), turns, axes=(-2, -1)))
        lines.append(Line(names[client], images))
    return lines
