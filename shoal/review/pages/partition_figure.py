"""The figure of a partition: the number of samples of each label that each client holds."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from shoal.data.partition.summary import label_counts
from shoal.data.partition.table import Partition
from shoal.data.sets.prepared import Prepared
from shoal.review.mlflow_log.run_names import PARAMETER_OF
from shoal.review.results.clusters import partition_client_names
from shoal.review.results.fonts import drawable, make_drawable

_ANNOTATED_CELLS = 300
_TICKS = 40


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
    clients = partition.clients
    names = partition_client_names(partition)
    width = min(max(4.5, 0.5 * clients + 3.0), 24.0)
    height = min(max(3.2, 0.34 * len(counts) + 1.6), 16.0)
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if len(counts):
        image = axes.imshow(counts, aspect="auto", cmap="Blues", interpolation="nearest", vmin=0)
        figure.colorbar(image, ax=axes, label="samples")
        labels = list(prepared.manifest.class_names) or [str(label) for label in range(len(counts))]
        axes.set_yticks(*_ticks(labels))
        axes.set_ylabel("label")
        if counts.size <= _ANNOTATED_CELLS:
            dark = counts.max() / 2
            for (row, column), count in np.ndenumerate(counts):
                colour = "white" if count > dark else "black"
                axes.text(column, row, f"{count}", ha="center", va="center", fontsize=7, color=colour)
    else:
        axes.bar(np.arange(clients), np.bincount(partition.client, minlength=clients), color="tab:blue")
        axes.set_ylabel("samples")
    name_length = max(map(len, names))
    axes.set_xticks(*_ticks(names), rotation=90 if name_length > 4 else 0)
    axes.set_xlabel("client")
    # Above the whole figure, wrapped to its width.
    figure.suptitle(textwrap.fill(_title(partition), int(width * 11)), fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    make_drawable(figure)
    figure.savefig(path, dpi=150, format="png")
    return path


def _ticks(names: list[str]) -> tuple[list[int], list[str]]:
    """Return positions and names of at most `_TICKS` ticks."""
    positions = list(range(0, len(names), -(-len(names) // _TICKS)))
    return positions, [drawable(names[position]) for position in positions]


def _title(partition: Partition) -> str:
    s = partition.settings
    shown = PARAMETER_OF.get(str(s.get("kind")), "")
    scheme = str(s.get("kind", "")).replace("_", " ")
    parts = [partition.data, f"{scheme} ({shown} = {s[shown]})" if shown in s else scheme]
    if s.get("transform", "none") != "none":
        parts.append(f"{str(s['transform']).replace('_', ' ')}, {s['groups']} groups")
    return f"{', '.join(parts)}: {len(partition.sample):,} samples, {partition.clients} clients"
