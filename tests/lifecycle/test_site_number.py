"""`model.clusters: auto` where samples lie at sites: their number in one place, asked for once, as policies allow."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.engine.rounds.outcomes import RoundFailed
from shoal.engine.settings import places
from shoal.lifecycle import preparing, site_number
from shoal.lifecycle.starting import new_run
from tests.conftest import at_home
from tests.engine.sites.test_site_bits import settings_of
from tests.engine.sites.test_site_policy import OPEN, write_policy
from tests.sites import federation, joined_set, name_of

pytestmark = pytest.mark.long
AT_SITES: dict[str, Any] = {"data": {"name": name_of("points")}, "workers": {"runner": "sites", "device": "cpu"}}


def chosen(**changes: Any) -> Any:
    auto = {**AT_SITES, "method": {"name": "auto"}, "model": {"clusters": "auto"}, "choose": {"max_clusters": 6}}
    return new_run(settings_of("fedkmeans", **{**auto, **changes})).lineage().clusters_chosen


def test_sites_find_the_number_of_one_place_once_where_policies_allow_it(
    home: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = replace(OPEN, data=(name_of("points"),), methods=(*OPEN.methods, "auto"), min_samples=30)
    with federation(("points",), 100, (2, 1, 1)) as sites:
        monkeypatch.setattr(preparing, "transport", lambda: sites.pipes)
        monkeypatch.setattr(site_number, "open_pool", lambda *_: nullcontext(sites.pool))
        for place in sites.pipes.homes.values():
            write_policy(place, allowed)
        found = chosen()
        asked = len(sites.pipes.asked)
        assert chosen() == found
        assert len(sites.pipes.asked) == asked + 3, "each site described its set"
        with at_home(tmp_path_factory.mktemp("one-place")):
            joined_set(places.store(), sites.sets["points"])
            here = chosen(workers={"runner": "local"})
        assert (found.clusters, found.samples) == (here.clusters, here.samples) == (3, 240)
        assert [k.stability for k in found.curve] == pytest.approx([k.stability for k in here.curve], abs=0.2)

        write_policy(sites.pipes.homes["north"], allowed, rounds_a_day=3)
        with pytest.raises(RoundFailed, match=r"site north refuses: .* `rounds_a_day`"):
            chosen(seed=1)
        write_policy(sites.pipes.homes["north"], allowed)
        assert chosen(seed=1).clusters == 3, "the search goes on"


@pytest.mark.parametrize(("points", "least"), [(2, 5), (7, 7)])
def test_a_search_sends_no_group_of_less_than_five(points: int, least: int) -> None:
    settings = settings_of("fedkmeans", method={"name": "fedkmeans", "min_points": points}, choose={"max_clusters": 6})
    assert site_number.settings_of_search(settings, settings).method.min_points == least
