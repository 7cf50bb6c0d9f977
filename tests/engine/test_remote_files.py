"""Workers that see neither the run's folder nor the data: the same bits through a depot."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.cluster_work import work
from engine.codec import StoreError, read_json
from engine.pools import open_pool
from engine.remote_files import UNUSED_DAYS, RemoteFiles, RemoteFilesPool
from engine.round_paths import is_earlier_version
from engine.settings import SettingsError
from engine.wire import Answer, RemoteRequest, Request, Train, answer_of
from engine.worker import Worker
from methods.base import Clients, Evaluation, Server
from methods.registry import METHODS
from review.clusters import cluster_facts, keep_clusters
from tests.engine.test_every_method_runs import CASES
from tests.engine.test_peers import Ring, _sections
from tests.runs import numbers, straight

Make = Callable[..., Any]


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A depot beside the home folder, and an empty cache."""
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    return (tmp_path / "depot").as_uri()


class Elsewhere:
    """A worker in this process that is not told where the run's folder is."""

    count = 1

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def call(self, request: RemoteRequest) -> Answer:
        plain = request.plain()
        self.seen.add(plain["do"])
        nowhere = {key: "/nowhere" for key in ("run", "server") if key in plain}
        return answer_of(request, work({**plain, **nowhere}, "cpu"))


@pytest.mark.parametrize("name", ["fedpnp", "cfcl", "fedema"])
def test_the_same_bits_where_the_runs_folder_is_not_seen(
    tmp_path: Path, home: Path, small: Make, url: str, name: str
) -> None:
    settings = small(**CASES.get(name, {}))
    whole = straight(settings)
    there = Elsewhere()
    pool = RemoteFilesPool(there, url)
    run = straight(settings, pool.call)
    assert numbers(run) == numbers(whole)
    assert there.seen == {"train", "evaluate"}
    (opened,) = (tmp_path / "cache").glob("runs/*/lineage.json")
    for what in ("data", "partition"):
        assert Path(read_json(opened)[what]["folder"]).is_relative_to(tmp_path / "cache")
    remote = RemoteFiles(url)
    states = remote.fs.glob(f"{remote.root}/runs/*/rounds/*/server.safetensors")
    assert len(states) == 1, "earlier server states are of no more use"
    assert not remote.fs.glob(f"{remote.root}/runs/*/back/*")
    assert len(list((tmp_path / "cache").glob("runs/*/rounds/*/server.safetensors"))) == 1
    assert keep_clusters(run, pool.call)  # for which the state of the round before is sent again
    assert "assign" in there.seen
    assert keep_clusters(whole, Worker().handle)
    assert cluster_facts(run) == cluster_facts(whole)
    pool.close()
    assert not remote.fs.glob(f"{remote.root}/runs/*")
    assert remote.fs.glob(f"{remote.root}/data/*/complete")


def test_letters_of_several_rounds_wait_for_a_client_that_sits_out(
    tmp_path: Path, home: Path, small: Make, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Patient(Ring):
        def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
            return {"sum": float(server.tensors["sum"])}

    monkeypatch.setitem(METHODS, "fedcc", Patient)
    monkeypatch.setattr("engine.settings.Settings.dataclass", lambda self, key: _sections(self, key))
    settings = small(
        method={"name": "fedcc"}, partition={"clients": 5}, participation={"fraction": 0.4}, rounds=8, seed=0
    )
    inboxes: list[tuple[str, ...]] = []

    def watch(request: Request) -> Answer:
        if isinstance(request, Train):
            inboxes.extend(each.inbox for each in request.clients)
        return pool.call(request)

    pool = RemoteFilesPool(Elsewhere(), url)
    run = straight(settings, watch)
    assert max(map(len, inboxes)) > 1, "nobody sat out while messages came"
    assert numbers(run) == numbers(straight(settings))


def test_a_dask_cluster_with_a_depot(tmp_path: Path, home: Path, small: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(p for p in sys.path if p))
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    depot = (tmp_path / "depot").as_uri()
    settings = small(rounds=2, workers={"runner": "dask", "slots": 2, "depot": depot})
    with open_pool(settings.workers, "cpu") as pool:
        run = straight(settings, pool.call, slots=2)
    assert numbers(run) == numbers(straight(small(rounds=2)))
    assert list((tmp_path / "cache" / "runs").iterdir())
    assert not (tmp_path / "depot" / "runs").exists() or not list((tmp_path / "depot" / "runs").iterdir())


def test_an_answer_damaged_on_its_way_is_the_clients_failure(home: Path, small: Make, url: str) -> None:
    spoilt: list[Path] = []

    class Damaging:
        count = 1

        def call(self, request: RemoteRequest) -> Answer:
            answer = answer_of(request, work(request.plain(), "cpu"))
            if isinstance(request.request, Train) and not spoilt:
                spoilt.append(next((home / "depot").glob("runs/*/back/*/update-*")))
                spoilt[0].write_bytes(b"x")
            return answer

    run = straight(small(rounds=1), RemoteFilesPool(Damaging(), url).call)
    failed = [e for e in run.events() if e["event"] == "client_failed"]
    assert len(failed) == 1
    assert "came back from the depot with other bytes" in failed[0]["message"]
    assert numbers(run) == numbers(straight(small(rounds=1)))


def test_a_depot_that_cannot_be_is_named(small: Make, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"workers\.depot: 'nowhere://x' cannot be used"):
        RemoteFiles("nowhere://x")
    with pytest.raises(SettingsError, match=r"workers\.depot is for workers on other hosts"):
        small(workers={"depot": "memory://x"})
    with pytest.raises(StoreError, match=r"the depot file:.* failed at a/b"):
        RemoteFiles((tmp_path / "none").as_uri()).get("a/b", tmp_path / "b")


def test_versions_of_the_same_thing() -> None:
    assert is_earlier_version("rounds/0007/server.safetensors", "rounds/0006/server.safetensors")
    assert is_earlier_version("memory/3/0007.safetensors", "memory/3/0002.safetensors")
    assert not is_earlier_version("memory/3/inbox/0007-1.safetensors", "memory/3/inbox/0006-2.safetensors"), (
        "both are still unread"
    )
    assert not is_earlier_version("memory/3/0007.safetensors", "memory/4/0002.safetensors")
    assert not is_earlier_version("memory/3/0007.safetensors", "memory/3/inbox/0002-1.safetensors")
    assert not is_earlier_version("rounds/0006/server.safetensors", "rounds/0007/server.safetensors")
    assert not is_earlier_version("settings.yaml", "settings.yaml")


def test_a_worker_forgets_what_nobody_asked_for(tmp_path: Path, home: Path, small: Make, url: str) -> None:
    """A run of long ago goes when a new one comes; data that both use stay, and so does a run in use."""
    there = Elsewhere()
    old, used, new = (straight(small(seed=seed), RemoteFilesPool(there, url).call) for seed in (1, 2, 3))
    cached = {run: next((tmp_path / "cache" / "runs").glob(f"{run.name}-*")) for run in (old, used, new)}
    (data,) = (tmp_path / "cache" / "data").iterdir()
    long_ago = time.time() - (UNUSED_DAYS + 1) * 24 * 3600
    for folder in (cached[old], cached[used], data):
        os.utime(folder, (long_ago, long_ago))
    # A request is enough to count as use, and brings the data back to life.
    again = RemoteFilesPool(there, url)
    again.call(Train(used.path, used.settings().rounds, (), ()))
    straight(small(seed=4), RemoteFilesPool(there, url).call)
    assert not cached[old].exists()
    assert cached[used].exists()
    assert cached[new].exists()
    assert data.exists()
    # Data that somebody deleted come back with the next request.
    shutil.rmtree(data)
    again.call(Train(used.path, used.settings().rounds, (), ()))
    assert (data / "manifest.json").exists()
