"""What a site keeps to itself, what it refuses, and that it answers twice with the same bytes."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from shoal.core.errors import DataError, PartitionError
from shoal.data.sets.elsewhere import joined_manifest, site_set
from shoal.engine.rounds.outcomes import RoundFailed
from shoal.engine.settings import places
from shoal.engine.settings.run_settings import SettingsError
from shoal.engine.sites.frames import SiteAnswer, SiteCall, arrays_of, pack, unpack
from shoal.engine.sites.transport import SiteFailed, ask_site
from shoal.engine.store.codec import load_tensors
from shoal.engine.store.run_folder import RunError
from shoal.lifecycle.driving import drive
from shoal.lifecycle.starting import new_run
from shoal.review.results.clusters import cluster_facts
from shoal.review.results.runs import listed_runs
from shoal.review.results.summary import size
from shoal.review.served.explain import explain
from shoal.review.served.server_view import server_view
from tests.engine.sites.test_site_bits import new_run_at_sites, settings_of
from tests.runs import go_on
from tests.sites import Federation, add_own_set, federation, name_of


@pytest.fixture(scope="module")
def sites() -> Iterator[Federation]:
    with federation(clients=(2, 1, 1)) as made:
        yield made


@pytest.fixture(autouse=True)
def rested(sites: Federation) -> Iterator[None]:
    sites.pipes.asked.clear()
    sites.pipes.kill_at.clear()
    yield
    for home in sites.pipes.homes.values():
        (home / "refuse").unlink(missing_ok=True)


def asked_to(sites: Federation, do: str) -> list[tuple[str, SiteCall, bytes]]:
    """The site, the request and the answer of what was asked."""
    calls = [(site, unpack(SiteCall, content)[0], answer) for site, content, answer in sites.pipes.asked]
    return [(site, call, answer) for site, call, answer in calls if call.do == do]


# --- sets -------------------------------------------------------------------------------------------------------------


def test_clients_are_numbered_by_the_names_of_sites(sites: Federation, home: Path) -> None:
    run = new_run_at_sites(sites, settings_of("fedkmeans"))
    assert {name: about.clients for name, about in run.lineage().sites.items()} == {
        "east": (0, 1),
        "north": (2,),
        "south": (3,),
    }
    assert list(run.lineage().sites) == ["east", "north", "south"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"extra": {"features": ["f0", "f1", "weight (g)", "f3"]}},
            "column 3 is weight (g) at site b, and f2 at site a",
        ),
        ({"label": ["0", "1", "two"] * 20}, "class 3 is two at site b, and 2 at site a"),
        ({"x": np.zeros((60, 5), np.float32)}, "shape is (5,) at site b, and (4,) at site a"),
    ],
)
def test_sites_whose_sets_differ_are_refused_by_site_and_column(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    sets = {
        "a": site_set(add_own_set(tmp_path / "a", "points", 60, 0)),
        "b": site_set(add_own_set(tmp_path / "b", "points", 60, 1, **changes)),
    }
    with pytest.raises(DataError) as error:
        joined_manifest("wards", sets)
    assert said in str(error.value)


def test_a_run_at_sites_is_refused_where_they_are_not_reached(sites: Federation, home: Path) -> None:
    run = new_run_at_sites(sites, settings_of("fedkmeans"))
    with pytest.raises(RunError, match="lie at sites"):
        drive(run)
    with pytest.raises(PartitionError, match="needs labels"):
        new_run(settings_of("fedkmeans", partition={"kind": "dirichlet", "clients": 3}))
    with pytest.raises(PartitionError, match="cannot leave its sites"):
        new_run(settings_of("fedkmeans", partition={"kind": "iid", "clients": 3}))
    with pytest.raises(SettingsError, match=r"set workers\.runner=sites"):
        new_run(settings_of("fedkmeans", model={"clusters": "auto"}))


# --- what stays at a site ---------------------------------------------------------------------------------------------


def readable(path: Path) -> bytes:
    """The bytes of a file; of a table also its texts, which may be compressed."""
    content = path.read_bytes()
    if path.suffix == ".parquet":
        content += pd.read_parquet(path).to_csv().encode()
    return content


def test_the_lead_has_no_sample_and_no_name_of_a_file(sites: Federation, home: Path) -> None:
    run = new_run_at_sites(sites, settings_of("fedkmeans"))
    drive(run, slots=sites.pool)
    facts = cluster_facts(run)
    assert facts is not None
    assert facts.verdict is not None
    assert facts.sites is not None
    assert facts.quality["smallest_cluster"] * 180 == pytest.approx(round(facts.quality["smallest_cluster"] * 180))
    report = (run.path / "report.html").read_text()
    assert "Have each site look at the samples of its clusters" in report
    assert "mean by site" in report
    lines = re.findall(
        "<tr><td>(.*)</td></tr>", report[report.index("<h2>Sites</h2>") : report.index("<h2>Over rounds</h2>")]
    )
    rows = {site: others for site, *others in (line.split("</td><td>") for line in lines)}
    assert {site: others[0] for site, others in rows.items()} == {"east": "2", "north": "1", "south": "1"}
    assert sum(int(count) for others in rows.values() for count in others[3:]) == 180
    clients = run.table("clients")
    sent = clients[clients["client"].isin(run.lineage().sites["north"].clients)]["bytes_up"].sum()
    assert rows["north"][2] == size(sent)
    for look in (partial(explain, cluster=0), server_view):
        with pytest.raises(RunError, match="`shoal site report RUN` shows a site its own clusters"):
            look(run)
    held = b"".join(readable(path) for path in sorted(home.rglob("*")) if path.is_file())
    answers = b"".join(answer for _, _, answer in sites.pipes.asked)
    for prepared in sites.sets["vector"]:
        for part in ("train", "test"):
            for row in np.asarray(getattr(prepared, f"{part}_x")):
                assert row.tobytes() not in held
                assert row.tobytes() not in answers
    for secret in (b"secret-patient", b"secret-ward", str(sites.folder).encode()):
        assert secret not in held
        assert secret not in answers
    requests = b"".join(content for _, content, _ in sites.pipes.asked)
    assert str(home).encode() not in requests
    for _, call, _ in asked_to(sites, "open"):
        lineage = json.loads(call.texts["lineage"])
        assert lineage["data"]["folder"] == lineage["partition"]["folder"] == ""
    for site, homes in sites.pipes.homes.items():
        (table,) = homes.glob(f"runs/{run.lineage().id}/clusters.parquet")
        assert set(pd.read_parquet(table)["file"].str.contains("secret-patient")) == {True}, site
        (here,) = (listed for listed in listed_runs(homes / "runs") if listed.name == run.lineage().id)
        assert (here.state, here.rounds) == ("site", run.status().round)


@pytest.mark.long
def test_null_baselines_are_a_federated_run_once_a_set(sites: Federation, home: Path) -> None:
    runs = []
    for name in ("fedgmm", "kfed"):
        run = new_run_at_sites(sites, settings_of("fedgmm", method={"name": name}, rounds=2))
        drive(run, slots=sites.pool)
        runs.append(run)
    assert len(list(places.runs().glob("*/settings.yaml"))) == 2
    assert len(list(places.baselines().glob("*_fedkmeans_*/settings.yaml"))) == 1
    assert not [event for run in runs for event in run.events() if event.kind == "baseline_skipped"]
    facts = [cluster_facts(run) for run in runs]
    assert len({fact.quality["acc_of_columns_by_site"] for fact in facts if fact is not None}) == 1


def test_a_private_memory_stays_at_its_site(sites: Federation, home: Path) -> None:
    run = new_run_at_sites(sites, settings_of("uifca"))
    go_on(run, sites.pool.call, slots=3)
    answers = b"".join(answer for _, _, answer in sites.pipes.asked)
    kept = sorted(run.memory.rglob("*.safetensors"))
    assert kept
    for path in kept:
        tensors, facts = load_tensors(path)
        assert not tensors
        assert facts["site"] == {0: "east", 1: "east", 2: "north", 3: "south"}[int(path.parent.name)]
    for home_of_site in sites.pipes.homes.values():
        for folder in (home_of_site / "runs" / run.lineage().id / "memory").glob("*/*"):
            memories = list(folder.glob("*.safetensors"))
            assert 1 <= len(memories) <= 2
            for path in memories:
                assert path.read_bytes() not in answers
    content, answer = next(
        (content, answer)
        for site, content, answer in reversed(sites.pipes.asked)
        if (site, unpack(SiteCall, content)[0].do) == ("north", "train")
    )
    shutil.rmtree(sites.pipes.homes["north"] / "runs" / run.lineage().id / "work")
    _, again = unpack(SiteAnswer, sites.pipes.ask("north", content))
    assert again == unpack(SiteAnswer, answer)[1] != {}, "it trains again from the last memory but one"


# --- answers ----------------------------------------------------------------------------------------------------------


def test_nothing_of_an_evaluation_leaves_a_site_whose_sums_have_noise(sites: Federation, home: Path) -> None:
    run = new_run_at_sites(sites, settings_of("fedkmeans", privacy={"clip": 1.0, "noise": 0.1, "unit": "row"}))
    go_on(run, sites.pool.call, slots=3)
    for do in ("evaluate", "assign"):
        for _, _, answer in asked_to(sites, do):
            told, files = unpack(SiteAnswer, answer)
            assert told.facts.get("metrics", {}) == {}
            assert told.facts.get("silhouette") is None
            assert "comparison" not in told.facts
            assert all(not array.any() for array in arrays_of(files[told.facts["arrays"]]).get("sums", {}).values())
    assert "acc" not in run.table("rounds")


def test_a_site_that_refuses_is_asked_once_and_not_quarantined(sites: Federation, home: Path) -> None:
    (sites.pipes.homes["south"] / "refuse").write_text("train")
    run = new_run_at_sites(sites, settings_of("fedkmeans"))
    go_on(run, sites.pool.call, slots=3)
    asked = [call.round for site, call, _ in asked_to(sites, "train") if site == "south"]
    assert asked == sorted(set(asked))
    assert len(asked) == run.status().round
    left_out = [event for event in run.events() if event.kind == "client_left_out"]
    assert {event.facts["client"] for event in left_out} == {3}
    assert left_out[0].facts["message"] == "site south refuses: no train at night"
    assert not run.status().quarantined


def test_too_few_sites_that_do_not_refuse_stop_a_run_with_their_reason(sites: Federation, home: Path) -> None:
    for site in ("south", "north"):
        (sites.pipes.homes[site] / "refuse").write_text("train")
    run = new_run_at_sites(sites, settings_of("fedkmeans", participation={"minimum": 0.9}))
    with pytest.raises(RoundFailed, match="site north refuses: no train at night"):
        go_on(run, sites.pool.call, slots=3)


def test_samples_do_not_go_to_other_clients(sites: Federation, home: Path) -> None:
    exchange = {"name": "cfcl", "steps": 6, "tau_a": 3, "tau_p": 2, "reserve": 5, "budget": 4}
    run = new_run_at_sites(sites, settings_of("fedpnp", method=exchange, rounds=6))
    with pytest.raises(RoundFailed, match="method 'cfcl' sends samples to other clients, and they stay here"):
        go_on(run, sites.pool.call, slots=3)


def test_other_code_is_refused(sites: Federation, home: Path) -> None:
    call = SiteCall("describe", "another", data=name_of("vector"))
    with pytest.raises(SiteFailed, match=r"site north refuses: its Shoal is .* and that of the lead another"):
        ask_site(sites.pipes, "north", call, {})


def test_what_is_no_message_of_the_lead_gets_a_sentence(sites: Federation) -> None:
    for content in (b"", b"x" * 100, pack(SiteCall("describe", ""), {"0" * 64: b"changed"})):
        answer, _ = unpack(SiteAnswer, sites.pipes.ask("north", content))
        assert answer.error is not None
        assert "message" in answer.error
