"""Nights whose samples lie at sites, over pipes: what a site takes in, and how both models are judged there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shoal.data.sets.prepare import own_folder
from shoal.data.sets.prepared import open_prepared
from shoal.engine.settings.run_settings import make_settings
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.warm_start import WarmStart
from shoal.lifecycle import preparing
from shoal.lifecycle.claim import claimed_run
from shoal.lifecycle.driving import CLUSTERS, ROUNDS, drive
from shoal.lifecycle.night_settings import NightSettings
from shoal.lifecycle.site_judging import compare_at_sites
from shoal.lifecycle.taking_in import NightError, TakenIn, take_in
from shoal.review.served.judging import Decision, JudgingError, held_out_samples, judge
from tests.conftest import SMALL
from tests.engine.sites.test_site_policy import OPEN, write_policy
from tests.sites import Federation, add_own_set, federation, name_of, samples

SETTINGS = make_settings(
    {
        **SMALL,
        "data": {"name": name_of("image")},
        "method": {"name": "fedkmeans", "min_points": 5},
        "model": {"encoder": "pixels", "clusters": 10},
        "partition": {"kind": "by_column"},
        "workers": {"runner": "sites", "device": "cpu"},
        "rounds": 40,
    }
)


INCOMING = "incoming"


@pytest.fixture
def sites(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Federation]:
    """Sites that watch a folder; the one in the south holds out fewer samples than its least group."""
    with federation(()) as made:
        for number, (site, count) in enumerate({"east": 60, "north": 60, "south": 20}.items()):
            place = made.folder / site
            add_own_set(place / "data" / "store", "image", count, number, label=None)
            (place / INCOMING / f"secret-ward-{number}-0").mkdir(parents=True)
            write_policy(place, OPEN, min_samples=9, min_group=5, watch={SETTINGS.data.name: str(place / INCOMING)})
        monkeypatch.setattr(preparing, "transport", lambda: made.pipes)
        yield made


def night(sites: Federation, champion: RunFolder | None) -> tuple[TakenIn, RunFolder, Decision]:
    taken = take_in(SETTINGS, NightSettings())
    origin = None if champion is None else WarmStart.from_run(champion)
    with claimed_run(SETTINGS, origin=origin, data=taken.digest) as run:
        drive(run, slots=sites.pool, stages=(ROUNDS, CLUSTERS))
        return taken, run, compare_at_sites(run, champion, "auto", 0.0, sites.pool.call)


@pytest.mark.long
def test_new_files_of_a_site_are_taken_in_and_both_models_judged_there(sites: Federation) -> None:
    _, champion, first = night(sites, None)
    assert (first.promoted, first.champion) == (True, None)
    arrived = sites.folder / "north" / INCOMING / "secret-ward-1-0"
    for number, image in enumerate(samples("image", 30, 7)[0]):
        Image.fromarray(image[0]).save(arrived / f"{number}.png")
    (arrived / "broken.png").write_text("none")
    taken, challenger, decision = night(sites, champion)
    assert taken.new == 30
    again = take_in(SETTINGS, NightSettings())
    assert (again.new, again.digest) == (0, taken.digest)
    assert decision.why.endswith("means of 2 sites")
    stores = [sites.folder / site / "data" / "store" for site in ("east", "north")]
    held_out = [held_out_samples(open_prepared(own_folder(store, SETTINGS.data.name))) for store in stores]
    weights = [len(of_site.x) for of_site in held_out]
    both = [[judge(run, of_site)[1] for of_site in held_out] for run in (challenger, champion)]
    scores = [np.average([model.score("neighbours") for model in models], weights=weights) for models in both]
    judged = [vars(told)["scores"]["neighbours"] for told in (decision.challenger, decision.champion)]
    assert judged == pytest.approx(scores)
    ends = [new.interval("neighbours", old, SETTINGS.seed) for new, old in zip(*both, strict=True)]
    length = np.linalg.norm(np.multiply(np.diff(ends).ravel(), weights)) / sum(weights)
    assert decision.low is not None
    assert decision.high == pytest.approx(decision.low + length)
    with pytest.raises(JudgingError, match="needs labels"):
        compare_at_sites(challenger, champion, "acc", 0.0, sites.pool.call)


@pytest.mark.parametrize("night", [{"watch": "incoming"}, {"start": "scratch"}])
def test_what_only_works_where_samples_lie_is_refused(night: dict[str, Any], home: Path) -> None:
    with pytest.raises(NightError, match=r"leave night\.watch and night\.start out"):
        take_in(SETTINGS, NightSettings(**night))
