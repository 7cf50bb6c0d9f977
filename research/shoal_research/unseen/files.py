"""A set as a user's files: a folder with one sub-folder of images a site, or a table with a client column."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from shoal.data.intake.options import AddOptions
from shoal.data.intake.own import add
from shoal.data.sets.prepare import own_sets
from shoal.data.sets.prepared import Prepared
from shoal.engine.settings import places
from shoal_research.image_folder import write_images
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
    labels = [drawn.classes[label] for label in drawn.label]
    sites = [f"site-{number + 1}" for number in site]
    with tempfile.TemporaryDirectory(prefix=f"{name}-") as folder:
        if drawn.columns is None:
            options = AddOptions(labels=write_images(drawn.x, labels, sites, Path(folder)), licence=LICENCE)
            return add(Path(folder) / "images", name, places.store(), options)
        table = Path(folder) / "table.csv"
        rows = pd.DataFrame(drawn.x, columns=list(drawn.columns)).assign(client=sites, label=labels)
        rows.to_csv(table, index=False)
        return add(table, name, places.store(), AddOptions(label_column="label", licence=LICENCE))
