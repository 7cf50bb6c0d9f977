"""The calibration without labels: its drawn sets, and the tables of the pages."""

from __future__ import annotations

import json

import numpy as np
import pytest

from shoal.methods.scores.no_groups import GROUPS_GAIN
from shoal_research.kept import RESULTS
from shoal_research.label_free.calibrate import size_of, table_record
from shoal_research.label_free.drawn_images import colours, patterns, places
from shoal_research.label_free.tables import (
    PAGES,
    ROOT,
    page_with_tables,
    reached,
    tuning_figures,
)


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_made_from_the_figures(name: str) -> None:
    assert page_with_tables(name, tuning_figures()) == (ROOT / name).read_text()


def test_the_rules_hold_on_nearly_all_sets_that_they_were_chosen_on() -> None:
    reaches = reached(tuning_figures(), "images") + reached(tuning_figures(), "tables")
    assert len(reaches) >= 30
    assert reaches.count(False) <= 2
    assert sum(each["ratio"] >= 8 for kind in tuning_figures().values() for each in kind.values()) >= 10


def test_a_set_is_measured_as_the_rules_need_it() -> None:
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], 40)
    x = np.column_stack([20.0 * np.eye(3)[y] + rng.normal(size=(120, 3)), 1e4 * rng.normal(size=120), np.ones(120)])
    assert size_of(y) == {"samples": 120, "classes": 3, "ratio": 1.0}
    record = table_record(x, y)
    assert record["spread"] > 100
    assert record["spaces"]["standardised"]["acc"] > 0.95 > 0.6 > record["spaces"]["raw"]["acc"]


def test_drawn_sets_are_the_same_for_a_seed_and_uneven_where_asked() -> None:
    for make, shape in ((colours, (24, 24, 3)), (places, (20, 20)), (patterns, (40, 40, 3))):
        x, y = make(3, 60)
        again, _ = make(3, 60)
        assert x.shape == (60, *shape)
        assert x.dtype == np.uint8
        assert np.array_equal(x, again)
        assert not np.array_equal(x, make(4, 60)[0])
        assert len(y) == 60
    sizes = np.bincount(places(0, 2_000, ratio=10)[1])
    assert sizes.max() / sizes.min() == pytest.approx(10, rel=0.5)


def test_hardly_any_noise_has_groups_and_most_sets_have() -> None:
    kept = json.loads((RESULTS / "label_free_groups.json").read_text())
    good = {name: drawn["words"].get("good", 0) for name, drawn in kept["noise"].items() if name != "blobs"}
    # One draw of a Gaussian in dependent columns lies three deviations off (docs/representations.md).
    assert good.pop("correlated Gaussian, 20 columns") <= 1
    assert not any(good.values())
    assert not any("chance" in kept["noise"][name]["words"] for name in ("9:1", "19:1"))
    seen = [gain is not None and gain >= GROUPS_GAIN for drawn in kept["sets"].values() for gain in drawn["gains"]]
    assert sum(seen) >= 0.75 * len(seen)
