"""Digits whose classes are uneven over the federation: the set `digits-uneven` of the study `uneven-classes`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.data.sets.prepare import prepare
from shoal.engine.settings import places
from shoal_research.label_free.tuning_sets import thinned_rows
from shoal_research.own_sets import add_images, missing

NAME = "digits-uneven"
RATIO = 13
"""The largest class has so many times the samples of the smallest."""
SEED = 48
TEST_SHARE = 0.2
LICENCE = "as of the set digits"


def add_missing(names: Sequence[str]) -> None:
    """Add the set to the store, if it is not there; `names` are those of all sets of the study."""
    if NAME not in missing(names):
        return
    digits = prepare("digits", places.store())
    images = np.concatenate([np.asarray(digits.train_x), np.asarray(digits.test_x)])
    labels = np.concatenate([np.asarray(digits.train_y), np.asarray(digits.test_y)])
    kept = thinned_rows(labels, RATIO, SEED)
    classes = [str(label) for label in labels[kept]]
    add_images(NAME, images[kept, 0], classes, ["all"] * len(classes), licence=LICENCE, test=TEST_SHARE)
