"""A study over NVFlare, with a process and a home for the server and for each site: bits, and what goes wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from shoal.core.errors import ShoalError
from shoal.engine.sites.pools import open_pool
from shoal.engine.sites.server import status_of
from shoal.engine.sites.study import CERTIFICATE, Study
from shoal.engine.store.run_events import Event
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.starting import new_run
from tests.conftest import at_home
from tests.engine.sites.test_site_bits import CASES, run_in_one_place, settings_of
from tests.flows.test_prefect import Server
from tests.network import LEAD, Network, network, write_policy
from tests.runs import go_on
from tests.sites import KINDS, Federation, Pipes, add_own_set, name_of

pytestmark = pytest.mark.slow
NAMES = ("east", "north", "south")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with network(tmp_path_factory.mktemp("network"), NAMES) as begun:
        begun.sets = {
            kind: [add_own_set(begun.home(n) / "data" / "store", kind, 60, i) for i, n in enumerate(NAMES)]
            for kind in KINDS
        }
        for name in (LEAD, *NAMES):
            begun.start(name)
        yield begun


@pytest.fixture(autouse=True)
def allowed(made: Network) -> Iterator[None]:
    methods = [case[1].get("method", {}).get("name", name) for name, case in CASES.items()]
    made.allow(
        data=[name_of(kind) for kind in KINDS],
        methods=methods,
        min_samples=1,
        min_group=1,
        masked=False,
        keys={},
        rounds_a_day=10_000,
    )
    with at_home(made.home(LEAD)):
        yield


def study_of(made: Network) -> Study:
    assert made.study is not None
    return made.study


def run_at_sites(made: Network, name: str, **changes: object) -> RunFolder:
    return new_run(settings_of(name, workers={"runner": "sites", "device": "cpu"}, **changes))


def finish(run: RunFolder, observers: tuple[object, ...] = ()) -> None:
    with open_pool(run.settings().workers, "cpu") as pool:
        go_on(run, pool.call, observers, slots=3)


def reference(made: Network, name: str, folder: Path) -> str:
    """The digest of the last state of a run that has all samples in one place."""
    whole = run_in_one_place(Federation(made.folder, Pipes({}), made.sets), settings_of(name), CASES[name][0], folder)
    return whole.status().weights_sha256


@pytest.mark.parametrize("name", [name for name in CASES if "masked" not in name])
def test_bits_over_the_network_are_those_of_a_run_in_one_place(made: Network, name: str, tmp_path: Path) -> None:
    run = run_at_sites(made, name)
    finish(run)
    assert run.status().weights_sha256 == reference(made, name, tmp_path)


def test_a_site_and_the_server_that_are_killed_in_a_round_change_no_bit(made: Network, tmp_path: Path) -> None:
    killed = []

    def kill(event: Event) -> None:
        for name, round in (("north", 1), (LEAD, 2)):
            if event.kind == "client_finished" and event.round == round and name not in killed:
                killed.append(name)
                made.kill(name)

    run = run_at_sites(made, "fedkmeans")
    finish(run, (kill,))
    assert killed == ["north", LEAD]
    away = [event.message for event in run.events() if event.kind == "site_away"]
    assert "site north is not connected; it is waited for, 60 seconds at most" in away
    assert run.status().weights_sha256 == reference(made, "fedkmeans", tmp_path)


def test_a_policy_that_refuses_has_its_reason_at_the_lead(made: Network) -> None:
    run = run_at_sites(made, "fedkmeans", participation={"minimum": 1.0})
    policy = yaml.safe_load((made.home("south") / "site" / "policy.yaml").read_text())
    write_policy(made.home("south"), {**policy, "methods": []})
    with pytest.raises(ShoalError, match="site south refuses: its policy forbids it by `methods`"):
        finish(run)
    known = made.home(LEAD) / "data" / "store" / "own" / "wards-vector"
    shutil.rmtree(known)
    plan = [f"--set={key}" for key in ("workers.runner=sites", "data.name=wards-vector", "method.name=fedkmeans")]
    answers = made.shoal(LEAD, "run", "--dry-run", *plan, check=False)
    assert answers.returncode == 1
    assert "site south refuses: its policy forbids it by `methods`" in " ".join(answers.stdout.split())
    assert (known / "manifest.json").exists()  # what the sites have is noted
    assert "site south refuses: its policy forbids" in made.shoal(LEAD, "sites", "status").stdout


def test_a_name_that_is_not_in_the_certificate_never_connects(made: Network) -> None:
    study = study_of(made)
    west = made.home("west") / "site"
    shutil.copytree(made.home("south") / "site" / CERTIFICATE, west / CERTIFICATE)
    kit = json.loads((west / CERTIFICATE / "fed_client.json").read_text())
    kit["client"]["fqsn"] = "west"
    (west / CERTIFICATE / "fed_client.json").write_text(json.dumps(kit))
    made.start("west")
    approved = study.folder / "approved" / "west.signed.zip"
    shutil.copyfile(study.folder / "approved" / "south.signed.zip", approved)
    time.sleep(15)
    told = status_of(study)
    made.kill("west", keep=False)
    approved.unlink()
    assert told["west"].seen is None
    assert not told["west"].connected
    assert told["south"].connected


NIGHT = """
import json, sys
from shoal.engine.settings.run_settings import make_settings
from shoal.flows.nightly import nightly
if __name__ == "__main__":
    print(json.dumps(nightly(make_settings(json.loads(sys.argv[1])))))
"""


def test_a_night_is_paused_while_a_site_is_away(made: Network, tmp_path: Path) -> None:
    (tmp_path / "night.py").write_text(NIGHT)
    settings = settings_of("fedkmeans", workers={"runner": "sites", "device": "cpu"}, tracking={"mlflow": True})
    made.kill("north", keep=False)
    server = Server(tmp_path)
    try:
        outcomes: list[str] = []
        for _ in range(2):
            words = [sys.executable, str(tmp_path / "night.py"), json.dumps(settings.to_json())]
            env = {**server.env, **made.environment(LEAD), "PREFECT_HOME": str(tmp_path)}
            flow = subprocess.Popen(words, env=env, cwd=made.home(LEAD), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            while not outcomes and [run["state_type"] for run in server.find("flow_runs")] != ["PAUSED"]:
                assert flow.poll() is None, flow.communicate()
                time.sleep(0.5)
            if not outcomes:
                made.start("north")
            said, errors = flow.communicate()
            outcomes.append(json.loads(said)["outcome"])
        assert "round 1, site north" in {run["name"] for run in server.find("task_runs")}
    finally:
        server.stop()
    assert outcomes == ["promoted", "nothing new"], errors
