"""The contact sheet of a data set: some samples of each client, or of each label."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shoal.core.errors import DataError
from shoal.core.streams import Streams
from shoal.data.sets.prepared import Prepared
from shoal.engine.store.client_names import named
from shoal.engine.store.embedded import images_behind, why_no_images
from shoal.review.pages.cluster_sheets import images_of
from shoal.review.pages.contact_sheet import Block, draw_sheet

COLUMNS = 12
MAX_BLOCKS = 200
"""Clients or labels of a sheet."""


def draw_data_sheet(prepared: Prepared, path: Path, *, columns: int = COLUMNS, seed: int = 0) -> Path:
    """Draw training images, or windows of series as line plots, as a PNG with a named block for each client.

    Where the data name no clients, a block is of a label. Its images are a random draw, in their order in the set.

    Args:
        prepared: a set of images or windows.
        path: the PNG; its folder is made.
        columns: images of a block.
        seed: of the draws.

    Raises:
        DataError: the set holds neither images nor windows.
    """
    images = images_behind(prepared)
    if images is None:
        kind = prepared.manifest.kind
        reason = f"data set {prepared.manifest.name!r} holds {kind}s: expected a set of images or of windows"
        raise DataError(why_no_images(prepared) or reason)
    image_of = images_of(images, None)
    groups = groups_of(images)
    blocks = []
    for number, (name, samples) in enumerate(groups[:MAX_BLOCKS]):
        rows = drawn_samples(samples, columns, seed, number)
        blocks.append(Block(name, [image_of("train", sample) for sample in rows.tolist()], [()] * len(rows)))
    lines = []
    if len(groups) > MAX_BLOCKS:
        lines = [f"and {len(groups) - MAX_BLOCKS} more"]
    return draw_sheet(path, images.manifest.name, lines, blocks, columns)


def drawn_samples(samples: np.ndarray, count: int, seed: int, block: int) -> np.ndarray:
    """Return at most `count` samples of a block, a random draw in ascending order.

    Args:
        samples: their numbers, int (n,).
        count: how many to draw.
        seed: of the draw.
        block: its number, for a draw of its own.
    """
    rng = Streams(seed, client=block).numpy("contact sheet")
    return np.sort(rng.choice(samples, min(count, len(samples)), replace=False))


def groups_of(prepared: Prepared) -> list[tuple[str, np.ndarray]]:
    """Return the name of each client, or of each label, and its samples, int (n,); without either all samples."""
    if "client" in prepared.columns():
        group_of = prepared.column("client")
        names = [str(name) for name in prepared.manifest.extra.get("clients", [])]
    elif prepared.train_y is not None:
        group_of = np.asarray(prepared.train_y)
        names = list(prepared.manifest.class_names)
    else:
        return [("", np.arange(len(prepared.train_x)))]
    return [(named(names, group), np.flatnonzero(group_of == group)) for group in np.unique(group_of).tolist()]
