"""Turned images and the features of a RotNet as sets of the store: made once, the same every time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal.core.errors import DataError
from shoal.data.sets.prepare import own_folder, prepare, prepared_folder
from shoal.data.sets.prepared import Manifest, PreparedSet, write_prepared
from shoal.engine.settings import places
from shoal_research.definition import load_study
from shoal_research.uifca.turned import NAME, add_missing, quarter_turns


@pytest.fixture
def digits(home: Path) -> PreparedSet:
    return prepare("digits", places.store())


def added(name: str) -> PreparedSet:
    add_missing([name])
    return prepare(name, places.store())


def test_each_image_is_turned_by_the_angle_that_is_its_label(digits: PreparedSet) -> None:
    turned = added("turned-digits")
    for before, after, turn in zip(digits.train_x, turned.train_x, np.asarray(turned.train_y), strict=True):
        np.testing.assert_array_equal(np.rot90(before[0], turn), after[0])
    assert np.bincount(turned.train_y).min() > 300
    assert turned.manifest.class_names == ("0 degrees", "90 degrees", "180 degrees", "270 degrees")


def test_one_class_is_there_in_every_angle(digits: PreparedSet) -> None:
    upright = np.asarray(digits.train_x)[np.asarray(digits.train_y) == 3]
    turned = added("turned-digits-only3")
    assert np.bincount(turned.train_y).tolist() == [len(upright)] * 4
    for place, (image, turn) in enumerate(zip(turned.train_x, np.asarray(turned.train_y), strict=True)):
        np.testing.assert_array_equal(image[0], np.rot90(upright[place % len(upright), 0], turn))


def test_features_are_standardised_kept_and_the_same_when_made_again(digits: PreparedSet) -> None:
    name = "rotnet-digits-images300-epochs1"
    first = added(name)
    assert first.spec.kind == "vector"
    assert (first.train_x.shape, first.test_x.shape) == ((1437, 256), (360, 256))
    np.testing.assert_allclose(first.train_x.mean(0), 0, atol=1e-4)
    deviation = np.asarray(first.train_x).std(0)
    assert ((np.abs(deviation - 1) < 1e-3) | (deviation == 0)).all()
    manifest = own_folder(places.store(), name) / "manifest.json"
    stamp = manifest.stat().st_mtime_ns
    added(name)
    assert manifest.stat().st_mtime_ns == stamp
    manifest.unlink()
    assert added(name).manifest.digest == first.manifest.digest
    labels = np.asarray(added("turned-digits").train_y)
    np.testing.assert_array_equal(first.train_y, labels)


def test_what_cannot_be_turned_is_named(home: Path) -> None:
    with pytest.raises(DataError, match="'turned-gaussian' needs square images, and 'gaussian' holds vectors"):
        add_missing(["turned-gaussian"])
    with pytest.raises(DataError, match="there is no data set 'nothing'"):
        add_missing(["rotnet-nothing"])
    with pytest.raises(DataError, match="is no set of turned images"):
        add_missing(["digits"])
    x = np.zeros((24, 1, 8, 10), np.uint8)
    manifest = Manifest("mine", "image", (1, 8, 10), 2, 24, 0, source="a test", licence="none")
    y = np.arange(24) % 2
    write_prepared(prepared_folder(places.store(), "mine"), manifest, {"train_x": x, "train_y": y})
    with pytest.raises(DataError, match="'mine' holds images of"):
        add_missing(["turned-mine"])


def test_quarter_turns() -> None:
    x = np.arange(2 * 9.0).reshape(2, 1, 3, 3)
    out = quarter_turns(x, np.array([0, 3]))
    np.testing.assert_array_equal(out[0], x[0])
    np.testing.assert_array_equal(out[1], np.rot90(x[1], 3, (1, 2)))


@pytest.mark.parametrize("study", ["uifca-table3-rotated", "uifca-table3-representations"])
def test_the_studies_name_sets_that_can_be_made(study: str) -> None:
    about = load_study(study)
    assert about.add_data == "turned:add_missing"
    for scale in about.scales.values():
        assert NAME.fullmatch({**about.settings, **scale.settings}["data"].get("name", "rotnet-mnist"))
