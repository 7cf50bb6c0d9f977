"""Sets that studies add to the store, as `shoal data add` does with a person's files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from shoal.data.intake.options import AddOptions
from shoal.data.intake.own import add
from shoal.data.sets.prepare import own_sets
from shoal.data.sets.prepared import PreparedSet
from shoal.engine.settings import places


def missing(names: Iterable[str]) -> set[str]:
    """Return those of some names that no set in the store has."""
    return set(names) - {manifest.name for manifest in own_sets(places.store())}


def add_images(
    name: str, images: np.ndarray, labels: Sequence[str], sites: Sequence[str], **options: Any
) -> PreparedSet:
    """Add images from PNG files, one sub-folder a site, and a table of labels.

    Args:
        name: of the set.
        images: uint8 (n, height, width) or (n, height, width, 3).
        labels, sites: of each image.
        options: as of `AddOptions`.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = [f"{site}/{number:05}.png" for number, site in enumerate(sites)]
        for file, image in zip(files, images, strict=True):
            path = Path(folder) / "images" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
        table = Path(folder) / "labels.csv"
        pd.DataFrame({"file": files, "label": labels}).to_csv(table, index=False)
        return add(Path(folder) / "images", name, places.store(), AddOptions(labels=table, **options))


def add_table(name: str, rows: pd.DataFrame, **options: Any) -> PreparedSet:
    """Add a table from a CSV file; options as of `AddOptions`."""
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table.csv"
        rows.to_csv(table, index=False)
        return add(table, name, places.store(), AddOptions(**options))
