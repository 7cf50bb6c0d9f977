"""A set as a user's files: a folder with one sub-folder of images a site, or a table with a client column."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from shoal.data.sets.prepared import PreparedSet
from shoal_research.own_sets import add_images, add_table, missing
from shoal_research.unseen.sets import SEED, SETS, samples_of, set_name

LICENCE = "drawn, or taken, by the study of unseen data"


def add_missing(names: Sequence[str]) -> None:
    """Add sets to the store by their names, those that are not there."""
    wanted = missing(names)
    for key in SETS:
        if set_name(key) in wanted:
            add_set(key)


def add_set(key: str, seed: int = SEED, samples: int | None = None) -> PreparedSet:
    """Add a set to the store; arguments as of `samples_of`."""
    drawn, site = samples_of(key, seed, samples)
    labels = [drawn.classes[label] for label in drawn.label]
    sites = [f"site-{number + 1}" for number in site]
    if drawn.columns is None:
        return add_images(set_name(key), drawn.x, labels, sites, licence=LICENCE)
    rows = pd.DataFrame(drawn.x, columns=list(drawn.columns)).assign(client=sites, label=labels)
    return add_table(set_name(key), rows, label_column="label", licence=LICENCE)
