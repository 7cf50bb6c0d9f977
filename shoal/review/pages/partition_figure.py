"""The figure of a partition: the number of samples of each label that each client holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from shoal.core.errors import escaped
from shoal.data.partition.summary import label_counts
from shoal.data.partition.table import Partition
from shoal.data.sets.prepared import Prepared
from shoal.review.results.clusters import partition_client_names
from shoal.review.results.fonts import make_drawable

_ANNOTATED_CELLS = 300
_TICKS = 40
_IN_WORDS = ("kind", "clients", "seed", "limit")
"""Settings that the title says in other words, or not at all."""


def partition_figure(partition: Partition, prepared: Prepared, path: Path) -> Path:
    """Draw the heat map of labels by clients as a PNG; without labels, the samples per client as bars.

    A map of at most `_ANNOTATED_CELLS` cells shows their counts. Labels are those of the data set, before planted label
    maps.

    Args:
        partition: the partition.
        prepared: the data set that it divides.
        path: the PNG; its folder is made.

    Returns:
        The path.
    """
    counts = label_counts(partition, prepared)
    names = partition_client_names(partition)
    size = (np.clip(0.5 * len(names) + 3, 4.5, 24), np.clip(0.34 * len(counts) + 1.6, 3.2, 16))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    if len(counts):
        image = axes.imshow(counts, aspect="auto", cmap="Blues", interpolation="nearest", vmin=0)
        figure.colorbar(image, ax=axes, label="samples")
        labels = list(prepared.manifest.class_names) or [str(label) for label in range(len(counts))]
        axes.set_yticks(*_ticks(labels))
        axes.set_ylabel("label")
        if counts.size <= _ANNOTATED_CELLS:
            for (row, column), count in np.ndenumerate(counts):
                colour = "white" if count > counts.max() / 2 else "black"
                axes.text(column, row, str(count), ha="center", va="center", fontsize=7, color=colour)
    else:
        axes.bar(range(len(names)), np.bincount(partition.client, minlength=len(names)))
        axes.set_ylabel("samples")
    axes.set_xticks(*_ticks(names), rotation=90)
    axes.set_xlabel("client")
    figure.suptitle(_title(partition), fontsize=10, wrap=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    make_drawable(figure)
    figure.savefig(path, dpi=150, format="png")
    return path


def _ticks(names: list[str]) -> tuple[range, list[str]]:
    """Return positions and names of at most `_TICKS` ticks."""
    positions = range(0, len(names), -(-len(names) // _TICKS))
    return positions, [escaped(names[position]) for position in positions]


def _title(partition: Partition) -> str:
    settings = partition.settings
    chosen = [
        f"{key} {value}" for key, value in settings.items() if key not in _IN_WORDS and value not in (None, "none")
    ]
    scheme = ", ".join([str(settings.get("kind", "")).replace("_", " "), *chosen])
    return f"{partition.data}, {scheme}: {len(partition.sample):,} samples, {partition.clients} clients"
