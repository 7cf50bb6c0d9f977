"""A figure of the image sets: one sample of each class, a row a set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from shoal.data.sets.prepared import open_prepared
from shoal.review.pages.figures import save
from shoal_research.definition import Study
from shoal_research.table import Group, Table

FILE = "samples.png"


def draw_samples(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Draw the first sample of each class of every image set that has runs; it adds no rows to the result."""
    sets = {group.row.caption: open_prepared(group.runs[0].folder_of("data")) for group in groups}
    images = {caption: one for caption, one in sets.items() if one.spec.kind == "image"}
    if not images:
        return {}
    columns = max(one.spec.classes or 0 for one in images.values())
    figure = Figure(figsize=(0.8 * columns + 1.4, 0.85 * len(images)), layout="constrained")
    panels = figure.subplots(len(images), columns, squeeze=False)
    for row, (caption, one) in zip(panels, images.items(), strict=True):
        truth = np.asarray(one.train_y)
        row[0].set_title(caption, loc="left", fontsize="small")
        for label, axes in enumerate(row):
            axes.axis("off")
            if label < (one.spec.classes or 0):
                pixels = np.moveaxis(one.train_x[int(np.argmax(truth == label))], 0, -1)
                axes.imshow(pixels, cmap="gray", vmin=0, vmax=255)
    save(figure, folder / FILE)
    return {}
