"""`model.clusters: auto` where samples lie at sites: their number in one place, asked for once, as policies allow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.engine.settings import places
from shoal.engine.sites.log import SiteLog
from shoal.engine.sites.transport import SiteFailed
from shoal.engine.store.choice import Choice
from shoal.engine.store.run_facts import RunFacts
from shoal.lifecycle import preparing, site_number
from shoal.lifecycle.starting import new_run
from shoal.methods.clustering.number_at_sites import NumberSearch
from shoal.methods.contract.declared import MessageForm
from tests.conftest import at_home
from tests.engine.sites.test_site_bits import new_run_at_sites, settings_of
from tests.engine.sites.test_site_policy import MASKED, OPEN, write_policy
from tests.sites import Federation, federation, joined_set, name_of

ALLOWED = replace(OPEN, data=("wards-vector", "wards-points"), min_samples=30)
SITES: dict[str, Any] = {"workers": {"runner": "sites", "device": "cpu"}}


@pytest.fixture(scope="module")
def made() -> Iterator[Federation]:
    with federation(("vector", "points"), 100, (2, 1, 1)) as sites:
        for home in sites.pipes.homes.values():
            write_policy(home, ALLOWED)
        yield sites


@pytest.fixture
def sites(made: Federation, home: Path, monkeypatch: pytest.MonkeyPatch) -> Federation:
    monkeypatch.setattr(preparing, "transport", lambda: made.pipes)
    monkeypatch.setattr(site_number, "open_pool", lambda *_: nullcontext(made.pool))
    return made


def chosen(kind: str, **changes: Any) -> Choice:
    case = {"data": {"name": name_of(kind)}, "model": {"clusters": "auto"}, "choose": {"max_clusters": 6}}
    choice = new_run(settings_of("fedkmeans", **{**case, **changes})).lineage().clusters_chosen
    assert choice is not None
    return choice


def seeking(sites: Federation) -> list[Any]:
    """The lines of the search in the log of a site."""
    return [line for line in SiteLog(sites.pipes.homes["east"] / "site").entries() if line["do"] == "number"]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "method"), [("points", "fedkmeans"), ("vector", "auto")])
def test_the_number_is_that_of_one_place_and_is_asked_for_once(
    kind: str, method: str, sites: Federation, tmp_path: Path
) -> None:
    before = len(seeking(sites))
    found = chosen(kind, method={"name": method}, **SITES)
    lines = seeking(sites)[before:]
    assert len(lines) == 2
    assert {line["method"] for line in lines} == {"fedkmeans"}
    assert chosen(kind, method={"name": method}, **SITES) == found
    assert len(seeking(sites)) == before + len(lines)
    with at_home(tmp_path):
        joined_set(places.store(), sites.sets[kind])
        here = chosen(kind, method={"name": method})
    assert (found.clusters, found.samples) == (here.clusters, here.samples)
    for one, other in zip(found.curve, here.curve, strict=True):
        assert one.stability == pytest.approx(other.stability, abs=0.2)


@pytest.mark.long
def test_a_policy_that_refuses_and_a_wrong_answer_end_the_search(
    sites: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = RunFacts(new_run_at_sites(sites, settings_of("fedkmeans", **MASKED)))
    with pytest.raises(SiteFailed, match="refuses: neither noise nor masks cover"):
        sites.pool.seek_number("east", facts, 1, "centres", {}, MessageForm())
    with monkeypatch.context() as patched:
        patched.setattr(NumberSearch, "form", lambda *_: MessageForm())
        with pytest.raises(SiteFailed, match="its answer to 'centres' is refused: it holds a tensor 'centres'"):
            chosen("points", seed=1, **SITES)
    write_policy(sites.pipes.homes["north"], ALLOWED, rounds_a_day=1)
    with pytest.raises(SiteFailed, match=r"site north refuses: .* `rounds_a_day`: the lead asks for one round more"):
        chosen("points", seed=1, **SITES)
