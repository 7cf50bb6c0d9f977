"""Digits of uneven classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shoal.data.sets.prepare import prepare
from shoal.data.sets.prepared import open_prepared
from shoal.engine.settings import places
from shoal_research.label_free.tuning_sets import thinned_rows
from shoal_research.ssd.thinned_digits import NAME, RATIO, SEED, add_missing


def test_the_largest_class_has_thirteen_times_the_smallest(home: Path) -> None:
    labels = np.repeat(np.arange(10), 10_000)
    kept = thinned_rows(labels, RATIO, SEED)
    sizes = np.bincount(labels[kept])
    assert sizes.max() == 10_000
    assert abs(sizes.max() / sizes.min() - RATIO) < 1.5
    assert np.array_equal(kept, thinned_rows(labels, RATIO, SEED)), "the same in every home"


def test_the_set_is_added_once_with_the_images_of_digits(home: Path) -> None:
    add_missing([NAME])
    added = prepare(NAME, places.store())
    add_missing([NAME])
    again = prepare(NAME, places.store())
    assert added.manifest == again.manifest
    digits = prepare("digits", places.store())
    known = {image.tobytes() for part in (digits.train_x, digits.test_x) for image in np.asarray(part)}
    images = np.concatenate([np.asarray(added.train_x), np.asarray(added.test_x)])
    assert 400 < len(images) < 1000
    assert {image.tobytes() for image in images} <= known
    assert open_prepared(added.folder).manifest.classes == 10
