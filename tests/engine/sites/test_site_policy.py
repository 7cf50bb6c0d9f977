"""A site's own policy: each rule says no to what it forbids, and all of them together let a run go on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from typer import Exit
from typer.testing import CliRunner

from shoal.cli.run import check_run
from shoal.cli.site_commands import app
from shoal.engine.messages.wire import SumPlan
from shoal.engine.rounds.outcomes import RoundFailed
from shoal.engine.rounds.privacy_ledger import SetLedger
from shoal.engine.settings import places
from shoal.engine.settings.run_settings import SettingsError, load_settings, make_settings
from shoal.engine.sites.frames import SiteAnswer, SiteCall, pack, unpack
from shoal.engine.sites.gathering import ask_for_set, gather_set
from shoal.engine.sites.log import LogError, SiteLog
from shoal.engine.sites.own_rules import BY_POLICY, OwnRules
from shoal.engine.sites.policy import (
    Policy,
    PolicyError,
    forbidden,
    forbidden_of_run,
    forbidden_of_sum,
    read_policy,
    write_strict_policy,
)
from shoal.engine.sites.transport import SiteFailed, SiteRefusal
from shoal.engine.store.code_version import shoal_version
from shoal.engine.store.run_facts import RunFacts
from shoal.lifecycle import preflight, preparing
from shoal.lifecycle.driving import drive
from shoal.lifecycle.site_baseline import baseline_settings
from shoal.lifecycle.starting import new_run
from shoal.methods.contract.context import MethodError
from shoal.methods.features.column_facts import column_spread
from shoal.review.results.clusters import cluster_facts
from tests.conftest import at_home
from tests.engine.sites.test_site_bits import new_run_at_sites, settings_of
from tests.runs import go_on
from tests.sites import Federation, federation, name_of

SHOAL = shoal_version().sha256
OPEN = Policy(
    data=(name_of("vector"), name_of("image")),
    methods=("fedkmeans", "fedpnp"),
    code=(SHOAL,),
    min_samples=40,
    min_group=2,
    clip=None,
    noise=0.0,
    epsilon=None,
    masked=False,
    approve="all",
)
"""Allows the runs of these tests."""
MASKED = {"privacy": {"sums": "masked"}}
PRIVATE = {"privacy": {"clip": 1.0, "noise": 1.0}}


@pytest.fixture(scope="module")
def made() -> Iterator[Federation]:
    with federation(("vector", "image")) as sites:
        yield sites


@pytest.fixture
def sites(made: Federation) -> Iterator[Federation]:
    """Sites with a policy each, which have just started."""
    for site, home in made.pipes.homes.items():
        made.pipes.kill(site)
        write_policy(home, OPEN)
    made.pipes.asked.clear()
    yield made
    for home in made.pipes.homes.values():
        for path in (home / "site").glob("*"):
            if path.is_file():
                path.unlink()


def write_policy(home: Path, policy: Policy, **changes: Any) -> None:
    values = {name: list(v) if isinstance(v, tuple) else v for name, v in vars(replace(policy, **changes)).items()}
    (home / "site").mkdir(exist_ok=True)
    (home / "site" / "policy.yaml").write_text(yaml.safe_dump(values))


def write_masked(sites: Federation, **changes: Any) -> None:
    keys = {site: OwnRules(place / "site").public_key for site, place in sites.pipes.homes.items()}
    for place in sites.pipes.homes.values():
        write_policy(place, OPEN, masked=True, keys=keys, **changes)


# --- each rule --------------------------------------------------------------------------------------------------------


def test_a_policy_that_names_nothing_allows_nothing(tmp_path: Path) -> None:
    write_strict_policy(tmp_path / "policy.yaml")
    policy = read_policy(tmp_path / "policy.yaml")
    assert policy == Policy()
    assert [key for key, _ in forbidden(policy, SiteCall("describe", SHOAL, "wards"))] == ["data", "code"]
    keys = [key for key, _ in forbidden_of_run(policy, settings_of("fedkmeans"), 40)]
    assert keys == ["data", "methods", "min_samples", "min_group", "clip", "noise", "epsilon", "masked"]


@pytest.mark.parametrize(
    ("key", "rule", "settings", "asked"),
    [
        ("data", (), settings_of("fedkmeans"), "data.name=wards-vector"),
        ("methods", ("kfed",), settings_of("fedkmeans"), "method.name=fedkmeans"),
        ("min_samples", 49, settings_of("fedkmeans"), "work of a client of 48 samples"),
        ("min_group", 3, settings_of("fedkmeans"), "method.min_points=2"),
        ("clip", 0.5, settings_of("fedpnp", **PRIVATE), "privacy.clip=1"),
        ("clip", 0.5, settings_of("fedpnp"), "privacy.clip=none"),
        ("noise", 2.0, settings_of("fedpnp", **PRIVATE), "privacy.noise=1"),
        ("epsilon", 9.0, settings_of("fedpnp"), "no epsilon"),
        ("masked", True, settings_of("fedpnp"), "privacy.sums=plain"),
    ],
)
def test_each_rule_refuses_what_it_forbids(key: str, rule: Any, settings: Any, asked: str) -> None:
    assert not list(forbidden_of_run(OPEN, settings, 48))
    ((named, said),) = forbidden_of_run(replace(OPEN, **{key: rule}), settings, 48)
    assert named == key
    assert asked in said


def test_noise_hides_at_least_what_the_policy_names() -> None:
    run = settings_of("fedkmeans", privacy={"clip": 1.0, "noise": 1.0, "unit": "row"})
    assert not list(forbidden_of_run(OPEN, run, 48)), "no noise is asked for"
    assert not list(forbidden_of_run(replace(OPEN, noise=1.0, unit="row"), run, 48))
    assert list(forbidden_of_run(replace(OPEN, noise=1.0), run, 48)) == [("unit", "privacy.unit=row")]


@pytest.mark.parametrize(
    ("keys", "forbids"),
    [
        (None, "masked"),
        (("own", "south", "west"), "keys"),
        (("own", "own", "own"), "keys"),
        (("own", "south", "south"), None),
    ],
)
def test_a_sum_needs_masks_with_keys_that_the_policy_knows(keys: Any, forbids: str | None) -> None:
    policy = replace(OPEN, masked=True, keys={"south": "south"})
    plan = SumPlan(1, (0, 1, 2), 100, keys)
    assert [key for key, _ in forbidden_of_sum(policy, plan, "own")] == ([forbids] if forbids else [])
    assert not list(forbidden_of_sum(OPEN, plan, "own"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("min_group: 0", "min_group: given '0'"),
        ("methods: [kfed, fedkmeens]", "methods: no method is 'fedkmeens'"),
        ("methds: [kfed]", "methds: there is no such setting; did you mean methods?"),
        ("approve: yes", "approve"),
        ("- data", "holds a list"),
    ],
)
def test_a_wrong_policy_is_refused_in_a_sentence(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(text)
    with pytest.raises(PolicyError) as error:
        read_policy(tmp_path / "policy.yaml")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


# --- a run ------------------------------------------------------------------------------------------------------------


def test_a_run_goes_on_where_policies_allow_it_and_logs_hold_what_left(sites: Federation, home: Path) -> None:
    write_masked(sites, approve="ask")
    run = new_run_at_sites(sites, settings_of("fedkmeans", **MASKED))
    id = run.lineage().id
    with pytest.raises(RoundFailed, match=f"run {id} waits for `shoal site approve {id[:8]}` there; then resume it"):
        go_on(run, sites.pool.call, slots=3)
    for place in sites.pipes.homes.values():
        with at_home(place):
            assert OwnRules(place / "site").waiting() == [id]
            assert "null baseline" in CliRunner().invoke(app, ["approve", id[:8], "--yes"]).output
            assert not OwnRules(place / "site").waiting()
    baseline = new_run(baseline_settings(run.settings(), "vector", 10))
    sites.pool.open("east", RunFacts(baseline))  # it is not refused
    go_on(run, sites.pool.call, slots=3)
    for site, place in sites.pipes.homes.items():
        lines = SiteLog(place / "site").entries()
        answers = [answer for name, _, answer in sites.pipes.asked if name == site]
        assert [line["bytes"] for line in lines] == [len(answer) for answer in answers]
        trained = [line for line in lines if line["do"] == "train"]
        assert {line["round"] for line in trained} == set(range(1, run.status().round + 1))
        assert {line["method"] for line in trained} == {"fedkmeans"}
        assert trained[-1]["files"][0]["arrays"]["sums"] == ["I64", 1, 10, 64]


def test_one_mask_hides_one_message(sites: Federation, home: Path) -> None:
    write_masked(sites)
    go_on(new_run_at_sites(sites, settings_of("fedkmeans", rounds=2, **MASKED)), sites.pool.call, slots=3)
    asked = [
        (unpack(SiteCall, content), content, answer) for site, content, answer in sites.pipes.asked if site == "north"
    ]
    (early, *_), *_, (late, content, answer) = [entry for entry in asked if entry[0][0].do == "train"]
    assert sites.pipes.ask("north", content) == answer
    other = replace(late[0], clients=early[0].clients)
    told, files = unpack(SiteAnswer, sites.pipes.ask("north", pack(other, early[1])))
    assert "behind the same mask" in json.dumps([told.error, *map(str, told.facts.values())])
    assert not files
    go_on(new_run_at_sites(sites, settings_of("fedkmeans", rounds=1, **MASKED)), sites.pool.call, slots=3)
    trained = [line for line in SiteLog(sites.pipes.homes["north"] / "site").entries() if line["do"] == "train"]
    assert trained[0]["files"][0]["sha256"] != trained[-1]["files"][0]["sha256"], (
        "its one key masks other runs otherwise"
    )


@pytest.mark.parametrize("refused", ["a method", "a run that was forgotten"])
def test_a_run_that_is_refused_leaves_nothing_at_a_site(sites: Federation, home: Path, refused: str) -> None:
    place = sites.pipes.homes["north"]
    run = new_run_at_sites(sites, settings_of("fedkmeans"))
    said = "by `methods`: the lead asks for method.name=fedkmeans"
    write_policy(place, OPEN, approve="ask", **({"methods": ["kfed"]} if refused == "a method" else {}))
    if refused != "a method":
        with pytest.raises(SiteFailed, match="waits for"):
            sites.pool.open("north", RunFacts(run))
        with at_home(place):
            assert CliRunner().invoke(app, ["forget", run.lineage().id]).exit_code == 0
        said = "it has forgotten run"
    with pytest.raises(SiteFailed, match=said):
        sites.pool.open("north", RunFacts(run))
    assert not (place / "runs" / run.lineage().id).exists()


def test_a_refusal_names_the_key_and_what_was_asked(sites: Federation, home: Path) -> None:
    write_policy(sites.pipes.homes["east"], OPEN, rounds_a_day=1)
    said = f"{BY_POLICY} by `rounds_a_day`: the lead asks for one round more today"
    run = new_run_at_sites(sites, settings_of("fedkmeans", participation={"minimum": 0.9}))
    with pytest.raises(RoundFailed, match=f"site east refuses: {said}"):
        go_on(run, sites.pool.call, slots=3)
    assert SiteLog(sites.pipes.homes["east"] / "site").entries()[-1]["refused"] == said


def test_a_dry_run_names_all_that_each_policy_forbids_and_fails(
    sites: Federation, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes = sites.pipes.homes
    monkeypatch.setattr(preparing, "transport", lambda: sites.pipes)
    (home / "sites").mkdir()
    (home / "sites" / "study.yaml").write_text("server: {host: lead, fed_learn_port: 1}")
    plan = ["workers.runner=sites", f"data.name={name_of('vector')}", "method.name=fedkmeans", "privacy.sums=masked"]
    write_policy(homes["north"], OPEN, approve="ask")
    OwnRules(homes["north"] / "site").approve("1" * 32, settings_of("fedkmeans"))
    check_run(load_settings(None, plan))
    write_policy(homes["east"], OPEN, min_group=8, noise=1.0)
    write_policy(homes["south"], OPEN, masked=True)
    with pytest.raises(Exit):
        check_run(load_settings(None, plan))
    assert (home / "sites" / "answers.txt").read_text().splitlines() == [
        f"site south refuses: {BY_POLICY} by `keys`: the lead asks for masks of sites whose keys it does not name",
        f"site east refuses: {BY_POLICY} by `min_group`: the lead asks for method.min_points=2 (--set "
        "method.min_points=8 is allowed); by `noise`: the lead asks for privacy.noise=0",
        "site north would take part, once its person has approved the run: the run names the command",
    ]
    monkeypatch.setattr(preflight, "FEWEST_SUMMED", 4)
    with pytest.raises(SettingsError, match="masked, which needs 4 clients, and there are 3: "):
        check_run(load_settings(None, plan))


def test_columns_are_told_of_where_the_policy_names_auto(sites: Federation, home: Path) -> None:
    auto = make_settings({"data": {"name": name_of("vector")}, "partition": {"kind": "by_column"}})
    rows = [torch.from_numpy(np.array(prepared.train_x[:])) for prepared in sites.sets["vector"]]
    for methods in (("fedkmeans",), ("fedkmeans", "auto")):
        for place in sites.pipes.homes.values():
            write_policy(place, OPEN, methods=methods)
        gather_set(name_of("vector"), sites.pipes, places.store())
        if "auto" in methods:
            chosen = new_run(auto).lineage().method_chosen
            assert chosen is not None
            assert chosen.facts.spread == pytest.approx(np.mean([column_spread([of_site], ()) for of_site in rows]))
            assert not chosen.facts.counts
        else:
            assert ask_for_set(name_of("vector"), sites.pipes, "north").spread is None
            with pytest.raises(MethodError, match="not all policies name `auto`"):
                new_run(auto)


@pytest.mark.long
def test_auto_trains_images_of_sites_and_says_what_was_not_looked_at(sites: Federation, home: Path) -> None:
    for place in sites.pipes.homes.values():
        write_policy(place, OPEN, min_samples=1)
    gather_set(name_of("image"), sites.pipes, places.store())
    settings = {"data": {"name": name_of("image")}, "partition": {"kind": "by_column"}, "model": {"clusters": 3}}
    run = new_run(make_settings({**settings, "rounds": 2}))
    chosen = run.lineage().method_chosen
    assert chosen is not None
    assert chosen.reason.endswith("5,000; pixels and light are not looked at, since images stay at their sites")
    go_on(run, sites.pool.call, slots=3)
    assert run.status().round == 2


def test_a_paused_site_does_not_even_describe_its_set(sites: Federation, home: Path) -> None:
    (sites.pipes.homes["north"] / "site" / "paused").touch()
    with pytest.raises(SiteFailed, match="site north refuses: it is paused"):
        gather_set(name_of("vector"), sites.pipes, places.store())


def test_a_site_whose_policy_or_log_is_damaged_refuses_without_its_paths(sites: Federation, home: Path) -> None:
    (sites.pipes.homes["north"] / "site" / "policy.yaml").write_text("approve: /srv/ward")
    (sites.pipes.homes["south"] / "site" / "log.jsonl").write_text("{}\n")
    for site, said in (("north", "approve: 'a file there' is not known"), ("south", "is damaged: line 1, or the one")):
        with pytest.raises(SiteFailed, match=f"site {site} refuses: .*{said}") as refused:
            ask_for_set(name_of("vector"), sites.pipes, site)
        assert f"{site}/" not in str(refused.value)


def test_noise_that_has_left_a_site_leaves_it_again_and_counts_once(sites: Federation, home: Path) -> None:
    settings = settings_of("fedpnp", **PRIVATE, rounds=2, workers={"batched": 2})  # a group is of one site
    run = new_run_at_sites(sites, settings)
    sites.pipes.kill_at["north"] = 1
    go_on(run, sites.pool.call, slots=3)
    asked = [(site, unpack(SiteCall, content)[0], answer) for site, content, answer in sites.pipes.asked]
    first, second = (a for site, call, a in asked if (site, call.do, call.round) == ("north", "train", 1))
    assert first == second
    for place, clients in ((home, range(3)), (sites.pipes.homes["north"], (1,))):
        with at_home(place):
            (ledger,) = SetLedger.from_settings(settings.data).runs().values()
            assert ledger.asked == dict.fromkeys(clients, 2)
    assert [event.message for event in run.events() if event.kind == "site_away"] == ["site north is away"]


def test_the_own_ledger_adds_up_over_runs_and_ends_at_the_budget(home: Path) -> None:
    write_policy(home, OPEN, epsilon=12.0)
    rules = OwnRules(home / "site")
    settings = settings_of("fedpnp", **PRIVATE)
    for run in ("1" * 32, "2" * 32):
        rules.spend(SiteCall("train", SHOAL, run=run), settings, [0])
    rules.spend(SiteCall("train", SHOAL, run="3" * 32), settings, [1])
    with pytest.raises(SiteRefusal, match="by `epsilon`: the lead asks for updates that bring it to "):
        rules.spend(SiteCall("train", SHOAL, run="3" * 32), settings, [0] * 9)
    less_noise = settings_of("fedpnp", privacy={"clip": 1.0, "noise": 0.1})
    with pytest.raises(SiteRefusal, match=r"its ledger has the run with noise .*, not 0\.1"):
        rules.spend(SiteCall("train", SHOAL, run="3" * 32), less_noise, [0])
    assert len(SetLedger.from_settings(settings.data).runs()) == 3


@pytest.mark.long
def test_small_cells_stay_at_their_site_and_acc_has_bounds(sites: Federation, home: Path) -> None:
    settings = settings_of("fedkmeans", method={"name": "fedkmeans", "min_points": 5})
    exact = {}
    for least in (1, 5):
        for place in sites.pipes.homes.values():
            write_policy(place, OPEN, min_group=least)
        run = new_run_at_sites(sites, settings)
        drive(run, slots=sites.pool)
        last = run.table("rounds").iloc[-1]
        if least == 1:
            exact = dict(last)
    assert not {"acc", "nmi", "balance"} & set(last.index)
    assert 0 < last["samples_withheld"] < 180
    for name in ("acc", "purity"):
        assert last[f"{name}_at_least"] < exact[name] < last[f"{name}_at_most"]
    facts = cluster_facts(run)
    assert facts is not None
    assert facts.sites is None
    assert last["acc_at_most"] - last["acc_at_least"] < 0.6
    page = (run.path / "report.html").read_text()
    assert "ACC, at least" in page
    assert page.count("<td>withheld</td>") == len(sites.pipes.homes) * 10
    tables = [SiteLog(place / "site").entries() for place in sites.pipes.homes.values()]
    assert all("metrics.acc" not in line["facts"] for lines in tables for line in lines[-2:])


@pytest.mark.long
def test_a_site_draws_the_images_of_its_own_clusters(sites: Federation, home: Path) -> None:
    run = new_run_at_sites(sites, settings_of("fedpnp", rounds=1))
    drive(run, slots=sites.pool)
    with at_home(sites.pipes.homes["north"]) as place:
        result = CliRunner().invoke(app, ["report", run.lineage().id[:8]])
        assert result.exit_code == 0, result.output
        sheets = list(place.glob(f"runs/{run.lineage().id}/figures/clusters/cluster-*.png"))
        assert f"images of {len(sheets)} clusters" in result.output
        assert sheets
    assert not list(run.figures.glob("clusters/*"))


# --- the log ----------------------------------------------------------------------------------------------------------


def logged(folder: Path, lines: int = 3) -> SiteLog:
    log = SiteLog(folder)
    for number in range(lines):
        log.append(SiteCall("train", SHOAL, run="1" * 32, round=number), "kfed", pack(SiteAnswer(), {}))
    return log


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda lines: lines[1:], "line 1, or the one before it"),
        (lambda lines: [lines[0], lines[2]], "line 2, or the one before it"),
        (lambda lines: lines[:2], "it has 2 lines, expected 3"),
        (lambda lines: [lines[0], lines[1].replace("kfed", "cfl"), lines[2]], "line 3, or the one before it"),
        (lambda lines: [*lines[:2], lines[2].replace("kfed", "cfl")], "line 3 is changed"),
    ],
)
def test_a_line_that_is_missing_or_changed_is_noticed(changed: Any, said: str, tmp_path: Path) -> None:
    log = logged(tmp_path)
    assert [line["round"] for line in log.entries()] == [0, 1, 2]
    log.path.write_text("".join(changed(log.path.read_text().splitlines(keepends=True))))
    with pytest.raises(LogError, match=said):
        log.entries()


def test_a_log_whose_end_was_not_written_goes_on(tmp_path: Path) -> None:
    log = logged(tmp_path, 2)
    end = log.end_path.read_bytes()
    logged(tmp_path, 1)
    log.end_path.write_bytes(end)  # killed after the line
    logged(tmp_path, 1)
    assert len(log.entries()) == 4
    log.path.write_text(log.path.read_text()[:-40])
    with pytest.raises(LogError):
        logged(tmp_path, 1)
