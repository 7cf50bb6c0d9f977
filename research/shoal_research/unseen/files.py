"""A set as a user's files: a folder with one sub-folder of images a site, or a table with a client column."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from shoal.data.intake.options import AddOptions
from shoal.data.intake.own import add
from shoal.data.sets.prepare import own_sets
from shoal.data.sets.prepared import Prepared
from shoal.engine.settings import places
from shoal_research.unseen.samples import Samples
from shoal_research.unseen.sets import SEED, SETS, samples_of, set_name

LICENCE = "drawn, or taken, by the study of unseen data"


def add_missing(names: Sequence[str]) -> None:
    """Add sets to the store by their names, those that are not there, as `shoal data add` does."""
    there = {manifest.name for manifest in own_sets(places.store())}
    for key in SETS:
        if set_name(key) in set(names) - there:
            add_set(key)


def add_set(key: str, seed: int = SEED, samples: int | None = None) -> Prepared:
    """Write a set's files to a temporary folder, and add them to the store; arguments as of `samples_of`."""
    drawn, site = samples_of(key, seed, samples)
    name = set_name(key)
    with tempfile.TemporaryDirectory(prefix=f"{name}-") as folder:
        if drawn.columns is None:
            labels = write_images(drawn, site, Path(folder))
            return add(Path(folder) / "images", name, places.store(), AddOptions(labels=labels, licence=LICENCE))
        table = write_table(drawn, drawn.columns, site, Path(folder))
        return add(table, name, places.store(), AddOptions(label_column="label", licence=LICENCE))


def write_images(samples: Samples, site: np.ndarray, folder: Path) -> Path:
    """Write PNG files below `images/`, one sub-folder a site; return the CSV with file and label, beside them."""
    rows = []
    for number, image in enumerate(samples.x):
        file = f"{site_name(site[number])}/{number:05}.png"
        path = folder / "images" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
        rows.append({"file": file, "label": samples.classes[samples.label[number]]})
    labels = folder / "labels.csv"
    pd.DataFrame(rows).to_csv(labels, index=False)
    return labels


def write_table(samples: Samples, columns: Sequence[str], site: np.ndarray, folder: Path) -> Path:
    """Write a CSV with the columns client and label beside the measurements; return its path."""
    table = pd.DataFrame(samples.x, columns=list(columns))
    table.insert(0, "client", [site_name(each) for each in site])
    table["label"] = [samples.classes[each] for each in samples.label]
    path = folder / "table.csv"
    table.to_csv(path, index=False)
    return path


def site_name(number: int) -> str:
    """Return the name of a site."""
    return f"site-{number + 1}"
