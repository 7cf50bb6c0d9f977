"""Digits whose classes are uneven over the federation: the set `digits-uneven` of the study `uneven-classes`."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from shoal.data.intake.options import AddOptions
from shoal.data.intake.own import add
from shoal.data.sets.prepare import own_sets, prepare
from shoal.engine.settings import places
from shoal_research.image_folder import write_images

NAME = "digits-uneven"
RATIO = 13
"""The largest class has so many times the samples of the smallest."""
SEED = 48
TEST_SHARE = 0.2
LICENCE = "as of the set digits"


def add_missing(names: Sequence[str]) -> None:
    """Add the set to the store, if it is not there; `names` are those of all sets of the study."""
    if NAME in {manifest.name for manifest in own_sets(places.store())}:
        return
    digits = prepare("digits", places.store())
    images = np.concatenate([np.asarray(digits.train_x), np.asarray(digits.test_x)])
    labels = np.concatenate([np.asarray(digits.train_y), np.asarray(digits.test_y)])
    kept = thinned(labels)
    with tempfile.TemporaryDirectory(prefix=f"{NAME}-") as folder:
        classes = [str(label) for label in labels[kept]]
        table = write_images(images[kept, 0], classes, ["all"] * len(classes), Path(folder))
        options = AddOptions(labels=table, licence=LICENCE, test=TEST_SHARE)
        add(Path(folder) / "images", NAME, places.store(), options)


def thinned(labels: np.ndarray) -> np.ndarray:
    """Return which samples stay, bool (n,): the class of rank r of c keeps RATIO^(-r / (c - 1)) of its samples."""
    rng = np.random.default_rng(SEED)
    classes = int(labels.max()) + 1
    keep = RATIO ** (-rng.permutation(classes) / (classes - 1))
    kept: np.ndarray = rng.random(len(labels)) < keep[labels]
    return kept
