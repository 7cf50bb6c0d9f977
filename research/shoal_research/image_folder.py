"""Images as a person brings them: a folder with one sub-folder a site, and a table of labels beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image


def write_images(images: np.ndarray, labels: Sequence[str], sites: Sequence[str], folder: Path) -> Path:
    """Write PNG files below `images/`, one sub-folder a site; return the CSV with file and label, beside them.

    Args:
        images: uint8 (n, height, width) or (n, height, width, 3).
        labels, sites: of each image.
        folder: to write to.
    """
    files = [f"{site}/{number:05}.png" for number, site in enumerate(sites)]
    for file, image in zip(files, images, strict=True):
        path = folder / "images" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    table = folder / "labels.csv"
    pd.DataFrame({"file": files, "label": labels}).to_csv(table, index=False)
    return table
