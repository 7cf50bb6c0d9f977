"""The calibration without labels: its drawn sets, and the tables of the pages."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from shoal.core.streams import Streams
from shoal.methods.scores.no_groups import gain_over_no_groups
from shoal_research.label_free.drawn_images import colours, patterns, places
from shoal_research.label_free.groups import judged
from shoal_research.label_free.tables import (
    PAGES,
    ROOT,
    page_with_tables,
    reached,
    tuning_figures,
)
from shoal_research.label_free.tuning_sets import IMAGES

DOUBTFUL = {"breast cancer", "breast cancer, uneven", "iris, uneven", "informative columns, uneven"}
"""Tables in which K-means finds no more than in random samples, or which are too small to tell."""


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_made_from_the_figures(name: str) -> None:
    assert page_with_tables(name, tuning_figures()) == (ROOT / name).read_text()


def test_the_rules_hold_on_nearly_all_sets_that_they_were_chosen_on() -> None:
    kept = tuning_figures()
    reaches = reached(kept, "images") + reached(kept, "tables")
    assert len(reaches) >= 30
    assert reaches.count(False) <= 2
    sets = [*kept["images"].values(), *kept["tables"].values()]
    assert sum(figures["ratio"] >= 8 for figures in sets) >= 10


def test_drawn_sets_are_the_same_for_a_seed_and_uneven_where_asked() -> None:
    for make, shape in ((colours, (24, 24, 3)), (places, (20, 20)), (patterns, (40, 40, 3))):
        x, y = make(3, 60)
        assert x.shape == (60, *shape)
        assert x.dtype == np.uint8
        assert np.array_equal(x, make(3, 60)[0])
        assert not np.array_equal(x, make(4, 60)[0])
        assert len(y) == 60
    sizes = np.bincount(places(0, 2_000, ratio=10)[1])
    assert sizes.max() / sizes.min() == pytest.approx(10, rel=0.5)


def test_no_noise_is_good_and_planted_groups_are() -> None:
    kept = tuning_figures()["groups"]
    words = {kind: Counter(row[-1] for rows in named.values() for row in rows) for kind, named in kept.items()}
    assert words.pop("blobs") == {"good": 20}
    tables = [name for name in kept["sets"] if name not in IMAGES]
    assert {name for name in tables if kept["sets"][name][0][-1] != "good"} == DOUBTFUL
    assert not words.pop("sets")["chance"] + words.pop("unseen runs")["chance"]
    words.pop("unseen")
    good = {
        name for named in map(kept.get, words) for name, rows in named.items() if any(row[-1] == "good" for row in rows)
    }
    assert good == {"a triangle"}, "K-means takes its corners for groups (research/docs/representations.md)"
    assert not words["a small group"]["chance"]


def test_a_kept_verdict_is_that_of_a_run() -> None:
    x = np.random.default_rng(0).random((100, 2))
    found, word = judged(x, 2)
    groups = gain_over_no_groups(x.astype(np.float32), 2, Streams(0).numpy("samples without groups"))
    assert groups.gain == pytest.approx(min(found), abs=0.01)
    assert word != "good"
