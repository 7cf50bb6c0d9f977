"""Contact sheets of clusters: the images of which a model is most certain, then those of which it is least certain."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image, ImageDraw

from shoal.data.sets.prepared import PreparedSet, open_prepared
from shoal.engine.store.embedded import has_version, images_behind, why_no_images
from shoal.engine.store.run_events import WARNING
from shoal.engine.store.run_folder import RunFolder
from shoal.review.pages.contact_sheet import Block, draw_sheet, shown_confidence
from shoal.review.results.clusters import TEST, read_clusters
from shoal.review.results.stable_names import with_stable_numbers

FOLDER = "clusters"
"""The folder of a run's sheets, below its figures."""
MAX_CERTAIN = 20
MAX_UNSURE = 10
"""Images of a cluster that are shown: the most certain, and the least certain."""
MAX_SHEETS = 100
"""Sheets of a run, of its largest clusters."""


def draw_cluster_sheets(run: RunFolder) -> list[Path]:
    """Draw a PNG per cluster of a run on images or windows, such as figures/clusters/cluster-03.png.

    Earlier ones are replaced. The images are those that clients hold, with planted rotations applied. Empty clusters
    have no sheet.

    Returns:
        The files; none where the run has no cluster table, or its samples cannot be drawn.
    """
    prepared = open_prepared(run.folder_of("data"))
    reason = why_not_drawn(run, prepared)
    if reason is not None:
        run.event_once("images_not_shown", reason, level=WARNING)
        return []
    table = named_clusters(run)
    return [] if table is None else draw_sheets(run, table, prepared)


def why_not_drawn(run: RunFolder, prepared: PreparedSet) -> str | None:
    """Return why the samples of a run cannot be drawn from the present set of its name; None if they can.

    Args:
        run: the run's folder.
        prepared: the set; that of the run, or one that has grown from it, has the run's samples.
    """
    if has_version(prepared.manifest, run.lineage().data.digest):
        return why_no_images(prepared)
    return f"the images of run {run.name} are not shown: its set has been replaced by another one of the same name"


def draw_sheets(run: RunFolder, table: pd.DataFrame, prepared: PreparedSet) -> list[Path]:
    """Draw a PNG for each of the largest clusters of a table, and return the files; earlier ones are replaced.

    Args:
        run: the run's folder.
        table: with the columns part, sample, file, client_name, cluster and confidence.
        prepared: the set of its samples; where they cannot be drawn there are no files.
    """
    folder = run.figures / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    images = images_behind(prepared)
    if images is None:
        return []
    image_of = images_of(images)
    table = table.dropna(axis=1, how="all")
    drawn = []
    for cluster in sorted(table["cluster"].value_counts().index[:MAX_SHEETS]):
        rows = table[table["cluster"] == cluster]
        title = f"Cluster {cluster}: {len(rows):,} of {len(table):,} samples ({len(rows) / len(table):.1%})"
        certain, unsure = by_certainty(rows)
        blocks = [block_of("most certain", certain, image_of)]
        if len(unsure):
            blocks.append(block_of("least certain", unsure, image_of))
        drawn.append(draw_sheet(folder / f"cluster-{cluster:02d}.png", title, about(rows), blocks))
    return drawn


def named_clusters(run: RunFolder) -> pd.DataFrame | None:
    """Return the cluster table of a run with the numbers by which people know clusters; None where it has none."""
    table = read_clusters(run)
    if table is None:
        return None
    return with_stable_numbers(table)


def images_of(prepared: PreparedSet) -> Callable[[str, int], np.ndarray]:
    """Return a function from (part, number) to the image, uint8 (channels, height, width)."""
    paint = painter_of(prepared)
    parts: dict[str, Any] = {"train": prepared.train_x, TEST: prepared.test_x}
    return lambda part, sample: paint(np.asarray(parts[part][sample]))


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


def by_certainty(
    rows: pd.DataFrame, most: int = MAX_CERTAIN, least: int = MAX_UNSURE
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the most certain rows, most certain first, and of the others the least certain, least certain first.

    Args:
        rows: samples with the column `confidence`.
        most, least: numbers of rows; fewer rows are divided in the same proportion.
    """
    ordered = rows.sort_values("confidence", ascending=False, kind="stable")
    count = min(most, -(-len(ordered) * most // (most + least)))
    return ordered[:count], ordered[count:][::-1][:least]


def block_of(heading: str, rows: pd.DataFrame, image_of: Callable[[str, int], np.ndarray]) -> Block:
    """Return the block of some samples."""
    return Block(heading, list(map(image_of, rows["part"], rows["sample"])), captions(rows))


def captions(rows: pd.DataFrame) -> list[tuple[str, ...]]:
    """Return the lines below each image: its confidence, and in a table of files its file and client."""
    shown = rows["confidence"].map(shown_confidence)
    if "file" not in rows:
        return list(zip(shown))
    if "client_name" in rows:
        shown = shown + "  " + rows["client_name"].fillna("")
    return list(zip(rows["file"].fillna(""), shown, strict=True))


WIDTH = 96
HEIGHT = 64
"""Pixels of a plot."""
MARGIN = 3
INKS = ((31, 119, 180), (255, 127, 14), (44, 160, 44), (214, 39, 40), (148, 103, 189), (140, 86, 75))
"""Colours of the channels, in turn."""
MEASURED = 2000
"""Windows from which the range of each channel is read."""

Painter = Callable[[np.ndarray], np.ndarray]
"""From a sample as it is stored to an image uint8 (1 or 3, height, width)."""


def painter_of(prepared: PreparedSet) -> Painter:
    """Return a function that draws a sample of a set of images or windows.

    All windows have one scale, so that a high one looks high: from the lowest to the highest value of each channel.
    """
    if prepared.manifest.kind != "series":
        return np.asarray
    some = np.asarray(prepared.train_x[:MEASURED])
    low = some.min(axis=(0, 2))
    high = some.max(axis=(0, 2))
    span = np.where(high > low, high - low, 1.0)

    def paint(window: np.ndarray) -> np.ndarray:
        return plot((np.asarray(window) - low[:, None]) / span[:, None])

    return paint


def plot(window: np.ndarray) -> np.ndarray:
    """Return a line plot uint8 (3, 64, 96) of a window (channels, length) with values from 0 to 1."""
    image = Image.new("RGB", (WIDTH, HEIGHT), "white")
    pen = ImageDraw.Draw(image)
    across = np.linspace(MARGIN, WIDTH - 1 - MARGIN, window.shape[1])
    for number, channel in enumerate(window):
        up = HEIGHT - 1 - MARGIN - np.clip(channel, 0, 1) * (HEIGHT - 1 - 2 * MARGIN)
        points = list(zip(across.tolist(), up.tolist(), strict=True))
        pen.line(points, fill=INKS[number % len(INKS)], width=1)
    return np.asarray(image).transpose(2, 0, 1).copy()
