"""Nights whose samples lie at sites, over pipes: what a site takes in, and how both models are judged there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shoal.data.sets.prepare import own_folder
from shoal.data.sets.prepared import open_prepared
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.warm_start import WarmStart
from shoal.lifecycle import preparing
from shoal.lifecycle.claim import claimed_run
from shoal.lifecycle.driving import CLUSTERS, ROUNDS, drive
from shoal.lifecycle.night_settings import NightSettings
from shoal.lifecycle.site_nights import compare_at_sites
from shoal.lifecycle.taking_in import NightError, take_in
from shoal.review.served.judging import Decision, JudgingError, held_out_samples, judge
from tests.engine.sites.test_site_bits import settings_of
from tests.engine.sites.test_site_policy import OPEN, write_policy
from tests.sites import Federation, add_own_set, federation, name_of, samples

SETTINGS = settings_of(
    "fedkmeans",
    data={"name": name_of("image")},
    model={"encoder": "pixels", "clusters": 10},
    method={"name": "fedkmeans", "min_points": 5, "sites": "ignore"},
    workers={"runner": "sites", "device": "cpu"},
    rounds=40,
    evaluate={"every": 40},
)


def night(sites: Federation, champion: RunFolder | None) -> tuple[int, RunFolder, Decision]:
    taken = take_in(SETTINGS, NightSettings())
    origin = None if champion is None else WarmStart.from_run(champion)
    with claimed_run(SETTINGS, origin=origin, data=taken.digest) as run:
        drive(run, slots=sites.pool, stages=(ROUNDS, CLUSTERS))
        return taken.new, run, compare_at_sites(run, champion, "auto", 0.0, sites.pool.call)


@pytest.mark.slow
def test_new_files_of_a_site_are_taken_in_and_both_models_judged_there(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with federation(()) as sites:
        for number, (site, count) in enumerate({"east": 60, "north": 60, "south": 20}.items()):
            place = sites.folder / site
            add_own_set(place / "data" / "store", "image", count, number, label=None)
            policy = {"min_samples": 9, "min_group": 5, "watch": {SETTINGS.data.name: str(place / "new")}}
            write_policy(place, OPEN, **policy)
            (place / "new" / f"secret-ward-{number}-0").mkdir(parents=True)
        monkeypatch.setattr(preparing, "transport", lambda: sites.pipes)
        _, champion, first = night(sites, None)
        assert (first.promoted, first.champion) == (True, None)
        for number, image in enumerate(samples("image", 30, 7)[0]):
            Image.fromarray(image[0]).save(sites.folder / "north" / "new" / "secret-ward-1-0" / f"{number}.png")
        (sites.folder / "north" / "new" / "secret-ward-1-0" / "broken.png").write_text("none")
        arrived, challenger, decision = night(sites, champion)
        assert arrived == 30
        assert decision.why.endswith("means of 2 sites"), "the third holds out fewer samples than its least group"
        assert take_in(SETTINGS, NightSettings()).digest == challenger.lineage().data.digest, "nothing is new"
        sets = [own_folder(sites.folder / site / "data" / "store", SETTINGS.data.name) for site in ("east", "north")]
        held_out = [held_out_samples(open_prepared(folder)) for folder in sets]
        weights = np.array([len(part.x) for part in held_out])
        models = [[judge(run, part)[1] for part in held_out] for run in (challenger, champion)]
        means = [np.average([model.score("neighbours") for model in of_run], weights=weights) for of_run in models]
        judged = (decision.challenger, decision.champion)
        assert [vars(scored)["scores"]["neighbours"] for scored in judged] == pytest.approx(means)
        lengths = [np.ptp(new.interval("neighbours", old, SETTINGS.seed)) for new, old in zip(*models, strict=True)]
        ends = np.array([decision.low, decision.high], dtype=float)
        assert np.ptp(ends) == pytest.approx(np.linalg.norm(lengths * weights) / weights.sum())
        with pytest.raises(JudgingError, match="needs labels"):
            compare_at_sites(challenger, champion, "acc", 0.0, sites.pool.call)


@pytest.mark.parametrize("night", [{"watch": "incoming"}, {"start": "scratch"}])
def test_what_only_works_where_samples_lie_is_refused(night: dict[str, Any], home: Path) -> None:
    with pytest.raises(NightError, match=r"leave night\.watch and night\.start out"):
        take_in(SETTINGS, NightSettings(**night))
