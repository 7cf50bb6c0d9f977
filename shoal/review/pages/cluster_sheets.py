"""Contact sheets of clusters: the images of which a model is most certain, then those of which it is least certain."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image, ImageDraw

from shoal.data.partition.table import Partition, load_partition
from shoal.data.sets.prepared import Prepared, open_prepared
from shoal.engine.store.embedded import images_behind, why_no_images
from shoal.engine.store.run_events import WARNING
from shoal.engine.store.run_folder import RunFolder
from shoal.review.pages.window_pictures import painter_of
from shoal.review.results.clusters import TEST, read_clusters
from shoal.review.results.fonts import drawable, text_length, write
from shoal.review.results.stable_names import with_stable_numbers

FOLDER = "clusters"
"""The folder of a run's sheets, below its figures."""
COLUMNS = 10
MAX_CERTAIN = 30
MAX_UNSURE = 20
"""Images of a cluster that are shown: the most certain, and the least certain."""
MAX_SHEETS = 100
"""Sheets of a run, of its largest clusters."""
_MIN_SIDE = 48
"""Pixels: smaller images are enlarged to at least this side."""
MAX_SIDE = 96
"""Pixels: larger images are reduced to this side."""
_NAMED_WIDTH = 104
"""Pixels: minimum width of an image with a name below it."""
_GAP = 6
_INK = (30, 30, 30)
_GREY = (110, 110, 110)


@dataclass(frozen=True)
class Block:
    """Some images under one heading.

    Attributes:
        heading: a few words.
        images: uint8 (channels, height, width) each.
        names: names of the files; empty where a sample has none.
        clients: owners of the images, written beside the confidence where there are file names.
        confidence: of each image.
    """

    heading: str
    images: Sequence[np.ndarray]
    names: Sequence[str]
    clients: Sequence[str]
    confidence: Sequence[float]


def draw_cluster_sheets(run: RunFolder) -> list[Path]:
    """Draw a PNG per cluster of a run on images or windows, such as figures/clusters/cluster-03.png.

    Earlier ones are replaced. The images are those that clients hold, with planted rotations applied. Empty clusters
    have no sheet.

    Returns:
        The files; none where the run has no cluster table, or its samples cannot be drawn.
    """
    folder = run.figures / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    prepared = open_prepared(run.folder_of("data"))
    table = read_clusters(run)
    if table is not None:
        table = with_stable_numbers(table)
    images = images_behind(prepared)
    reason = why_no_images(prepared)
    if reason is not None and all(event.message != reason for event in run.events()):
        run.event("images_not_shown", level=WARNING, message=reason)
    if images is None or table is None:
        return []
    image_of = images_of(images, load_partition(run.folder_of("partition")))
    drawn = []
    largest = table["cluster"].value_counts().index[:MAX_SHEETS]
    for cluster in sorted(largest):
        rows = table[table["cluster"] == cluster]
        title = f"Cluster {cluster}: {len(rows):,} of {len(table):,} samples ({len(rows) / len(table):.1%})"
        path = folder / f"cluster-{cluster:02d}.png"
        drawn.append(draw_sheet(path, title, about(rows), cluster_blocks(rows, image_of)))
    return drawn


def images_of(prepared: Prepared, partition: Partition) -> Callable[[str, int], np.ndarray]:
    """Return a function from (part, number) to the image as its client holds it, uint8 (channels, height, width)."""
    paint = painter_of(prepared)
    change_of = dict(zip(partition.sample.tolist(), partition.transformation.tolist(), strict=True))

    def image_of(part: str, sample: int) -> np.ndarray:
        if part == TEST:
            assert prepared.test_x is not None
            return paint(np.asarray(prepared.test_x[sample]))
        turns = partition.transformations[change_of[sample]].degrees // 90
        return np.rot90(paint(np.asarray(prepared.train_x[sample])), turns, axes=(-2, -1))

    return image_of


def about(rows: pd.DataFrame) -> list[str]:
    """Return lines that describe a cluster: its confidence, its clients, and its labels where samples have some."""
    lines = [f"mean confidence {rows['confidence'].mean():.2f}"]
    for column, kind in (("client_name", "clients"), ("label", "labels")):
        if column in rows and rows[column].notna().any():
            shares = rows[column].value_counts(normalize=True)
            parts = [f"{name} ({share:.0%})" for name, share in shares.head(6).items()]
            if len(shares) > 6:
                parts.append(f"and {len(shares) - 6} more")
            lines.append(f"{kind}: {', '.join(parts)}")
    return lines


def by_certainty(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the most certain rows, most certain first, and of the others the least certain, least certain first."""
    ordered = rows.sort_values("confidence", ascending=False, kind="stable")
    count = min(MAX_CERTAIN, -(-len(ordered) * MAX_CERTAIN // (MAX_CERTAIN + MAX_UNSURE)))
    return ordered[:count], ordered[count:][::-1][:MAX_UNSURE]


def cluster_blocks(rows: pd.DataFrame, image_of: Callable[[str, int], np.ndarray]) -> list[Block]:
    """Return the two blocks of a cluster's sheet."""
    blocks = []
    for heading, part in zip(("most certain", "least certain"), by_certainty(rows), strict=True):
        if len(part):
            images = [image_of(*where) for where in zip(part["part"], part["sample"], strict=True)]
            names = part["file"].fillna("").tolist()
            clients = part["client_name"].fillna("").tolist()
            blocks.append(Block(heading, images, names, clients, part["confidence"].tolist()))
    return blocks


def draw_sheet(path: Path, title: str, lines: Sequence[str], blocks: Sequence[Block]) -> Path:
    """Draw blocks of images as a PNG, each image with its name and confidence below it; make the PNG's folder."""
    named = any(name for block in blocks for name in block.names)
    thumbs = [[thumbnail(image) for image in block.images] for block in blocks]
    height = max((t.height for row in thumbs for t in row), default=_MIN_SIDE)
    min_width, caption_height = (_NAMED_WIDTH, 30) if named else (_MIN_SIDE, 17)
    width = max([min_width, *(t.width for row in thumbs for t in row)])
    cell = height + caption_height
    rows = sum(-(-len(block.images) // COLUMNS) for block in blocks)
    top = 34 + 17 * len(lines)
    sheet = Image.new(
        "RGB", (COLUMNS * (width + _GAP) + _GAP, top + 26 * len(blocks) + rows * (cell + _GAP) + _GAP), "white"
    )
    draw = ImageDraw.Draw(sheet)
    draw_heading(draw, title, lines, sheet.width)
    for block, row in zip(blocks, thumbs, strict=True):
        write(draw, (_GAP, top + 5), block.heading, 13, _INK)
        top += 26
        captions = zip(block.names, block.clients, block.confidence, strict=True)
        for place, (thumb, (name, client, confidence)) in enumerate(zip(row, captions, strict=True)):
            left = _GAP + place % COLUMNS * (width + _GAP)
            up = top + place // COLUMNS * (cell + _GAP)
            sheet.paste(thumb, (left + (width - thumb.width) // 2, up + (height - thumb.height) // 2))
            below = shown_confidence(confidence)
            if named:
                write(draw, (left, up + height + 2), fit_text(name, 10, width), 10, _INK)
                below = fit_text(f"{below}  {client}", 10, width, end=True)
            write(draw, (left, up + cell - 15), below, 10, _GREY)
        top += -(-len(row) // COLUMNS) * (cell + _GAP)
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path, format="PNG", optimize=True)
    return path


def shown_confidence(value: float) -> str:
    """Return a confidence as it stands below an image: only a full one reads 1.00.

    >>> shown_confidence(0.994), shown_confidence(0.9951), shown_confidence(1.0)
    ('0.99', '>0.99', '1.00')
    """
    text = f"{value:.2f}"
    return ">0.99" if text == "1.00" and value < 1 else text


def draw_heading(draw: ImageDraw.ImageDraw, title: str, lines: Sequence[str], width: int) -> None:
    """Draw the title of a sheet, and below it some lines, each cut to the width of the sheet in pixels."""
    write(draw, (_GAP, _GAP), fit_text(title, 17, width - 2 * _GAP, end=True), 17, _INK)
    for number, line in enumerate(lines):
        write(draw, (_GAP, 30 + 17 * number), fit_text(line, 12, width - 2 * _GAP, end=True), 12, _GREY)


def thumbnail(image: np.ndarray) -> Image.Image:
    """Return an image uint8 (channels, height, width) in the size of a sheet; enlarge small ones by a whole factor."""
    pixels = np.broadcast_to(image[:3].transpose(1, 2, 0), (*image.shape[1:], 3))
    shown = Image.fromarray(np.ascontiguousarray(pixels))
    side = max(shown.size)
    if side < _MIN_SIDE:
        factor = -(-_MIN_SIDE // side)
        return shown.resize((shown.width * factor, shown.height * factor), Image.Resampling.NEAREST)
    shown.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.LANCZOS)
    return shown


def fit_text(text: str, size: int, width: int, *, end: bool = False) -> str:
    """Return a text that fits into some pixels; a longer one loses its beginning (names differ at their end).

    Args:
        text: the text.
        size: of its letters, in pixels.
        width: in pixels.
        end: cut off the end instead.
    """
    text = drawable(text)
    if text_length(text, size) <= width:
        return text
    for cut in range(1, len(text)):
        short = "…" + text[cut:]
        if end:
            short = text[:-cut] + "…"
        if text_length(short, size) <= width:
            return short
    return "…"
