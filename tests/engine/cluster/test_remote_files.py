"""Workers that see neither the run's folder nor the data: the same bits through a remote store."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import fsspec
import pytest

from shoal.core.durable import private_folder
from shoal.engine.cluster import remote_files
from shoal.engine.cluster.cluster_work import work
from shoal.engine.cluster.copy_names import copy_of, folders_of_clients
from shoal.engine.cluster.host_cache import UNUSED_DAYS, drop_unused_copies, fetch
from shoal.engine.cluster.pools import open_pool
from shoal.engine.cluster.remote_files import RemoteFiles, RemoteFilesGone
from shoal.engine.cluster.remote_pool import RemoteFilesPool
from shoal.engine.messages.wire import (
    Answer,
    Evaluate,
    Failed,
    RemoteRequest,
    Request,
    Train,
    Trained,
)
from shoal.engine.rounds.outcomes import RoundFailed
from shoal.engine.settings.run_settings import SettingsError
from shoal.engine.store.codec import StoreError, file_digest, read_json
from shoal.engine.store.memory_index import ClientFiles
from shoal.engine.store.round_paths import WORK, sender_of
from shoal.engine.store.run_events import Event
from shoal.engine.workers.worker import Worker
from shoal.engine.workers.worker_processes import WorkerLost
from shoal.lifecycle.starting import new_run
from shoal.methods.contract.base import Clients, Evaluation, Server
from shoal.methods.registry import METHODS
from shoal.review.results.clusters import cluster_facts, keep_clusters
from tests.engine.messages.test_peers import Ring
from tests.engine.rounds.test_every_method_runs import CASES
from tests.runs import go_on, numbers, straight

pytestmark = pytest.mark.long

Make = Callable[..., Any]


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A remote store beside the home folder, and an empty cache."""
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    return (tmp_path / "remote-files").as_uri()


class Elsewhere:
    """A worker in this process that is not told where the run's folder is."""

    count = 1

    def __init__(self) -> None:
        self.kinds: set[str] = set()

    def call(self, request: RemoteRequest) -> Answer:
        self.kinds.add(type(request.request).__name__)
        nowhere = {name: Path("/nowhere") for name in ("run", "server") if hasattr(request.request, name)}
        return work(replace(request, request=replace(request.request, **nowhere)), "cpu")


def soon(holds: Callable[[], bool]) -> None:
    """Wait for what is done beside the work, such as removing copies."""
    for _ in range(1000):
        if holds():
            return
        time.sleep(0.02)
    raise AssertionError("it never came to hold")


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
    assert there.kinds == {"Train", "Evaluate"}
    (opened,) = (tmp_path / "cache").glob("runs/*/lineage.json")
    for what in ("data", "partition"):
        assert Path(read_json(opened)[what]["folder"]).is_relative_to(tmp_path / "cache")
    remote = RemoteFiles(url)
    soon(lambda: len(remote.fs.glob(f"{remote.root}/runs/*/rounds/server-*.safetensors")) == 1)
    soon(lambda: not remote.fs.glob(f"{remote.root}/runs/*/back/*"))
    assert len(list((tmp_path / "cache").glob("runs/*/rounds/server-*.safetensors"))) == 1
    assert keep_clusters(run, pool.call)  # for which the state of the round before is sent again
    assert "Assign" in there.kinds
    assert keep_clusters(whole, Worker().handle)
    assert cluster_facts(run) == cluster_facts(whole)
    pool.close()
    assert not remote.fs.glob(f"{remote.root}/runs/*")
    assert remote.fs.glob(f"{remote.root}/data/*/complete")


def test_asynchronous_rounds_begin_from_several_states(home: Path, small: Make, url: str) -> None:
    settings = small(
        method={"name": "fedcc"},
        rounds=12,
        participation={"buffer": 2},
        partition={"kind": "iid", "clients": 6},
        evaluate={"every": 12},
    )
    whole = straight(settings)
    assert whole.table("rounds")["staleness"].max() > 0
    remote, there = RemoteFiles(url), []

    def watch(entry: Event) -> None:
        if entry.kind == "round_finished" and entry.round < 12:
            there.append(len(remote.fs.glob(f"{remote.root}/runs/*/{WORK}*/message-*.safetensors")))

    pool = RemoteFilesPool(Elsewhere(), url)
    run = straight(settings, pool.call, [watch])
    assert numbers(run) == numbers(whole)
    assert max(there) < 12, "messages of earlier rounds are removed"
    pool.close()


def test_letters_of_several_rounds_wait_for_a_client_that_sits_out(
    tmp_path: Path, home: Path, small: Make, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Patient(Ring):
        def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
            return {"sum": float(server.tensors["sum"])}

    monkeypatch.setitem(METHODS, "fedcc", Patient)
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


@pytest.mark.slow
def test_a_dask_cluster_with_a_remote_store(
    tmp_path: Path, home: Path, small: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(p for p in sys.path if p))
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    store_url = (tmp_path / "remote-files").as_uri()
    settings = small(rounds=2, workers={"runner": "dask", "slots": 2, "remote_files": store_url})
    with open_pool(settings.workers, "cpu") as pool:
        run = straight(settings, pool.call, slots=2)
    assert numbers(run) == numbers(straight(small(rounds=2)))
    assert list((tmp_path / "cache" / "runs").iterdir())
    assert not (tmp_path / "remote-files" / "runs").exists() or not list((tmp_path / "remote-files" / "runs").iterdir())


def test_an_answer_damaged_on_its_way_is_the_clients_failure(home: Path, small: Make, url: str) -> None:
    spoilt: list[Path] = []

    class Damaging:
        count = 1

        def call(self, request: RemoteRequest) -> Answer:
            answer = work(request, "cpu")
            if isinstance(request.request, Train) and not spoilt:
                spoilt.append(next((home / "remote-files").glob("runs/*/back/*/update-*")))
                spoilt[0].write_bytes(b"x")
            return answer

    run = straight(small(rounds=1), RemoteFilesPool(Damaging(), url).call)
    failed = [e for e in run.events() if e.kind == "client_failed"]
    assert len(failed) == 1
    assert "as when it was written" in failed[0].message
    assert numbers(run) == numbers(straight(small(rounds=1)))


@pytest.mark.parametrize("through", ["remote store", "shared folder"])
def test_a_run_that_goes_on_otherwise_is_not_given_bytes_of_before(
    home: Path, small: Make, url: str, through: str
) -> None:
    """Interrupted after a round without client 0 was evaluated; resumed, client 0 takes part after all."""
    settings = small(participation={"retries": 0, "minimum": 0.5})
    trains, judges, there = Worker(), Worker(), Elsewhere()

    def of_one_driver() -> Callable[[Request], Answer]:
        if through == "shared folder":
            return lambda request: (trains if isinstance(request, Train) else judges).handle(request)
        return RemoteFilesPool(there, url).call

    first = of_one_driver()

    def without_client_0(request: Request) -> Answer:
        answer = first(request)
        if request.round == 2 and isinstance(request, Evaluate):
            raise KeyboardInterrupt
        if request.round == 2 and isinstance(answer, Trained) and 0 in answer.clients:
            (request.run / "work" / "0002" / "done-0.json").unlink()
            return Trained({**answer.clients, 0: Failed("not now")})
        return answer

    run = new_run(settings)
    with pytest.raises(KeyboardInterrupt):
        go_on(run, without_client_0)
    assert "client_left_out" in {e.kind for e in run.events()}
    go_on(run, of_one_driver())
    assert numbers(run) == numbers(straight(settings))


@pytest.mark.parametrize(("name", "travels"), [("fedpnp", False), ("local_only", True)])
def test_memory_travels_to_an_evaluation_that_reads_it(
    home: Path, small: Make, url: str, name: str, travels: bool
) -> None:
    asked: dict[str, set[bool]] = {}

    class Watching(Elsewhere):
        def call(self, request: RemoteRequest) -> Answer:
            kind = type(request.request).__name__
            asked.setdefault(kind, set()).add(any(path.startswith("memory/") for path in request.files))
            return super().call(request)

    settings = small(rounds=2, **CASES.get(name, {}))
    run = straight(settings, RemoteFilesPool(Watching(), url).call)
    assert asked["Evaluate"] == {travels}
    assert asked["Train"] == {False, True}, "nobody has a memory in round 1, and in round 2 it goes to its client"
    assert numbers(run) == numbers(straight(settings))


def test_damaged_copies_are_fetched_again(tmp_path: Path, home: Path, small: Make, url: str) -> None:
    """One in the cache of a worker, then one in the remote store, which costs that worker's cohort a second try."""
    spoilt: list[str] = []

    class Damaging(Elsewhere):
        def call(self, request: RemoteRequest) -> Answer:
            where = {2: "cache/runs", 3: "remote-files/runs"}.get(request.request.round)
            if where and isinstance(request.request, Train) and where not in spoilt:
                spoilt.append(where)
                for copy in (tmp_path / where).glob(f"*/{WORK}*/message-*.safetensors"):
                    # The lead may clear an earlier round's files at this moment.
                    with contextlib.suppress(FileNotFoundError):
                        copy.write_bytes(b"x" * copy.stat().st_size)
                if where == "remote-files/runs":
                    shutil.rmtree(tmp_path / "cache")
            return super().call(request)

    settings = small(**CASES.get("fedpnp", {}))
    run = straight(settings, RemoteFilesPool(Damaging(), url).call)
    assert spoilt == ["cache/runs", "remote-files/runs"]
    assert numbers(run) == numbers(straight(settings))
    (lost,) = [e.message for e in run.events() if e.kind == "slot_lost"]
    assert "as when it was written" in lost
    assert f"shoal run --resume {run.name}" in lost


class Weak:
    """An fsspec file system that fails when it is told to, and answers nothing while it is gone."""

    def __init__(self, fs: Any) -> None:
        self._fs, self.fails, self.failed, self.gone = fs, lambda act, path: False, 0, False

    def __getattr__(self, name: str) -> Any:
        act = getattr(self._fs, name)

        def maybe(*args: Any, **more: Any) -> Any:
            if self.gone:
                raise ConnectionRefusedError("nobody listens")
            if name in ("put_file", "get_file") and self.fails(name, args[1] if name == "put_file" else args[0]):
                self.failed += 1
                raise ConnectionResetError("the store hung up")
            return act(*args, **more)

        return maybe


@pytest.fixture
def weak(monkeypatch: pytest.MonkeyPatch) -> Weak:
    """The file system of every remote store, one for this machine and the workers."""
    monkeypatch.setattr(remote_files, "PAUSE_SECONDS", (0.01,))
    monkeypatch.setattr(remote_files, "MAX_FAILING_SECONDS", 0.05)
    monkeypatch.setattr(remote_files, "ANSWER_SECONDS", 0.05)
    found = Weak(fsspec.filesystem("file"))
    monkeypatch.setattr(remote_files.fsspec.core, "url_to_fs", lambda url, **_: (found, url.removeprefix("file://")))
    return found


def test_a_transfer_that_fails_once_is_tried_again(home: Path, small: Make, url: str, weak: Weak) -> None:
    visited: set[tuple[str, str]] = set()

    def first_time(act: str, path: str) -> bool:
        new = (act, path) not in visited
        visited.add((act, path))
        return new and act == "get_file"

    weak.fails = first_time
    run = straight(small(rounds=2), RemoteFilesPool(Elsewhere(), url).call)
    assert weak.failed > 5
    assert not {"slot_lost", "client_failed"} & {e.kind for e in run.events()}
    assert numbers(run) == numbers(straight(small(rounds=2)))


@pytest.mark.parametrize("act", ["put_file", "get_file"])
@pytest.mark.parametrize("what", ["/message-", "/back/"])
def test_a_transfer_that_fails_costs_a_try_and_not_the_run(
    home: Path, small: Make, url: str, weak: Weak, act: str, what: str
) -> None:
    said: list[str] = []

    def watch(event: Event) -> None:
        if event.kind in ("slot_lost", "client_failed"):
            said.append(event.message)

    weak.fails = lambda this, path: this == act and what in path and not said
    run = straight(small(rounds=2), RemoteFilesPool(Elsewhere(), url).call, [watch])
    assert any("the store hung up" in message for message in said)
    assert numbers(run) == numbers(straight(small(rounds=2)))


def test_a_store_that_is_away_for_less_than_its_patience_is_waited_for(
    tmp_path: Path, weak: Weak, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_files, "MAX_FAILING_SECONDS", 60.0)
    remote = RemoteFiles((tmp_path / "remote-files").as_uri())
    (tmp_path / "one").write_bytes(b"bytes")
    weak.fails = lambda act, path: weak.failed < 20
    remote.put(tmp_path / "one", "one")
    assert remote.has("one")
    assert weak.failed == 20


def test_a_store_that_is_known_to_be_away_is_asked_once(tmp_path: Path, weak: Weak) -> None:
    """Files of a hundred clients would else wait one after the other."""
    remote = RemoteFiles((tmp_path / "remote-files").as_uri())
    weak.fails = lambda act, path: True
    with pytest.raises(StoreError):
        remote.get("one", tmp_path / "one")
    assert weak.failed > 1
    time.sleep(0.05)
    weak.failed = 0
    for _ in range(3):
        with pytest.raises(StoreError):
            remote.get("one", tmp_path / "one")
    assert weak.failed == 3


def test_the_client_of_an_object_store_does_not_try_again_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tries times ours took a minute and a half for a single file."""
    asked: list[dict[str, Any]] = []
    found = mock.Mock(retries=5)
    monkeypatch.setattr(remote_files.fsspec.core, "url_to_fs", lambda url, **more: asked.append(more) or (found, "b/x"))
    remote = RemoteFiles("s3://b/x")
    assert asked == [{"config_kwargs": {"retries": {"total_max_attempts": 1}}}]
    assert remote.fs.retries == 1
    RemoteFiles("gs://b/x")
    assert asked[1] == {}
    monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": {"retries": {"mode": "adaptive"}}})
    RemoteFiles("s3://b/x")
    assert asked[2] == {"config_kwargs": {"retries": {"mode": "adaptive"}}}


def test_a_store_that_takes_no_byte_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = mock.Mock(async_impl=True)
    monkeypatch.setattr(remote_files.fsspec.core, "url_to_fs", lambda url, **_: (found, "b/x"))
    remote = RemoteFiles("s3://b/x")
    (tmp_path / "large").write_bytes(bytes(300_000))
    remote.put(tmp_path / "large", "large")
    found.put_file.assert_called_once_with(str(tmp_path / "large"), "b/x/large", timeout=15.0 + 3.0)
    assert remote.answers()
    found.info.assert_called_once_with("b/x/complete", timeout=5.0)
    assert RemoteFiles((tmp_path / "remote-files").as_uri()).answers()


def test_no_client_is_left_out_because_the_remote_store_is_gone(home: Path, small: Make, weak: Weak, url: str) -> None:
    """With evaluations now and then a round would be closed without the clients that could not be reached."""
    settings = small(rounds=3, evaluate={"every": 3}, participation={"retries": 0})
    run = new_run(settings)

    def watch(event: Event) -> None:
        done = sum(each.kind == "client_finished" for each in run.events())
        weak.gone = weak.gone or done == 2

    with pytest.raises(RemoteFilesGone) as gone:
        go_on(run, RemoteFilesPool(Elsewhere(), url).call, [watch])
    assert "nobody listens, and it does not answer any more" in str(gone.value)
    assert str(gone.value).count(f"shoal run --resume {run.name}") == 1
    assert run.status().state == "failed"
    weak.gone = False
    go_on(run, RemoteFilesPool(Elsewhere(), url).call)
    assert not {"client_failed", "client_left_out"} & {e.kind for e in run.events()}
    assert numbers(run) == numbers(straight(settings))


@pytest.mark.parametrize("gone", [False, True])
def test_a_pool_whose_remote_store_is_gone_closes_without_it(
    home: Path, small: Make, weak: Weak, url: str, gone: bool
) -> None:
    pool = RemoteFilesPool(Elsewhere(), url)
    straight(small(rounds=1), pool.call)
    weak.gone = gone
    if gone:
        with pytest.raises(RemoteFilesGone):
            pool.call(Train(new_run(small(rounds=1)).path, 1, (), ()))
    pool.close()
    weak.gone = False
    remote = RemoteFiles(url)
    assert bool(remote.fs.glob(f"{remote.root}/runs/*")) is gone


def test_a_remote_store_that_fails_at_every_state_ends_the_run_resumable(
    home: Path, small: Make, url: str, weak: Weak
) -> None:
    settings = small(rounds=2)
    run = new_run(settings)
    weak.fails = lambda act, path: "/message-" in path
    with pytest.raises(
        RoundFailed, match=r"the remote store file:.* failed at runs/.*the store hung up.*shoal run --resume"
    ):
        go_on(run, RemoteFilesPool(Elsewhere(), url).call)
    assert run.status().state == "failed"
    weak.fails = lambda act, path: False
    go_on(run, RemoteFilesPool(Elsewhere(), url).call)
    assert numbers(run) == numbers(straight(settings))


def test_a_disk_of_a_worker_that_is_full_is_that_workers_loss(
    tmp_path: Path, home: Path, small: Make, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, *_: Any, **__: Any) -> None:
        if path.is_relative_to(tmp_path / "cache") and not done:
            done.append(path)
            raise OSError(28, "No space left on device")
        private_folder(path)

    done: list[Path] = []
    monkeypatch.setattr("shoal.engine.cluster.host_cache.private_folder", full)
    run = straight(small(rounds=1), RemoteFilesPool(Elsewhere(), url).call)
    assert numbers(run) == numbers(straight(small(rounds=1)))
    (lost,) = [e.message for e in run.events() if e.kind == "slot_lost"]
    assert "it cannot keep files in" in lost


def test_a_host_fetches_a_file_once_for_all_its_workers(
    tmp_path: Path, home: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = RemoteFiles(url)
    (tmp_path / "one").write_bytes(b"bytes")
    digest = file_digest(tmp_path / "one")
    remote.put(tmp_path / "one", "one")
    fetched = []
    get = RemoteFiles.get

    def slow(self: RemoteFiles, *args: Any) -> None:
        fetched.append(args[0])
        time.sleep(0.2)
        get(self, *args)

    monkeypatch.setattr(RemoteFiles, "get", slow)
    workers = [threading.Thread(target=fetch, args=(remote, "one", tmp_path / "here", digest)) for _ in range(4)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    assert (tmp_path / "here").read_bytes() == b"bytes"
    assert fetched == ["one"]


def test_files_travel_side_by_side(tmp_path: Path, home: Path, small: Make, url: str, weak: Weak) -> None:
    """Each transfer of a memory waits once until another one is on its way as well."""
    together, visited = threading.Barrier(2), set[tuple[str, str]]()

    def waits(act: str, path: str) -> bool:
        # Once: what is put again into a folder that is there now may be the last one on its way.
        if "/memory/" in path and (act, path) not in visited:
            visited.add((act, path))
            together.wait(30)
        return False

    weak.fails = waits
    run = new_run(small())
    digests = {}
    for client in range(8):
        path = f"memory/0/{client}/0000.safetensors"
        (run.path / path).parent.mkdir(parents=True)
        (run.path / path).write_bytes(bytes([client]))
        digests[path] = file_digest(run.path / path)
    (run.path / "rounds" / "0000").mkdir()
    (run.path / "rounds" / "0000" / "server.safetensors").write_bytes(b"state")
    clients = tuple(ClientFiles(k, path, sha256={path: digests[path]}) for k, path in enumerate(digests))
    pool = RemoteFilesPool(Elsewhere(), url)
    with pytest.raises(WorkerLost, match="cannot be read"):  # what it is given is no state
        pool.call(Evaluate(run.path, 0, run.path / "rounds" / "0000" / "server.safetensors", clients, final=True))
    assert len(list((tmp_path / "cache").glob("runs/*/memory/*/*/*.safetensors"))) == 8


def test_what_is_wrong_in_the_runs_folder_is_not_tried_elsewhere(home: Path, small: Make, url: str) -> None:
    run = straight(small(rounds=1))
    state = run.path / "rounds" / "0001" / "server.safetensors"
    memory = "memory/0/0/0001.safetensors"
    clients = (ClientFiles(0, memory),)
    wrong = (ClientFiles(0, memory, sha256={memory: "ab"}),)
    pool = RemoteFilesPool(Elsewhere(), url)
    with pytest.raises(StoreError, match="has been changed or damaged"):
        pool.call(Evaluate(run.path, 1, state, wrong, final=True))
    (run.path / "memory" / "0" / "0" / "0001.safetensors").unlink()
    for asked in (Evaluate(run.path, 1, state, clients, final=True), Evaluate(run.path, 1, home / "no", clients, True)):
        with pytest.raises(StoreError, match="cannot be read: No such file"):
            pool.call(asked)


def test_what_is_dropped_depends_on_what_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [
        "memory/0/3/0007-aa.safetensors",
        "memory/0/3/0006-bb.safetensors",
        "memory/0/3/inbox/0006-1-cc.safetensors",
    ]
    others = [f"memory/0/{k}/0001-dd.safetensors" for k in range(10, 40)]
    for name in (*names, *others):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    looked: list[str] = []
    scan = os.scandir

    def noted(path: Path) -> Any:
        looked.append(str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", noted)
    drop_unused_copies(tmp_path, {names[0]}, folders_of_clients([3]))
    monkeypatch.undo()
    assert sorted(looked) == [str(tmp_path / "memory/0/3"), str(tmp_path / "memory/0/3/inbox")]
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.safetensors"))
    assert left == sorted([names[0], *others])


def test_a_remote_store_that_cannot_be_is_named(small: Make, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"workers\.remote_files: 'nowhere://x' cannot be used"):
        RemoteFiles("nowhere://x")
    with pytest.raises(SettingsError, match=r"workers\.remote_files only applies to workers on other hosts"):
        small(workers={"remote_files": "memory://x"})
    with pytest.raises(StoreError, match=r"the remote store file:.* failed at a/b"):
        RemoteFiles((tmp_path / "none").as_uri()).get("a/b", tmp_path / "b")


def test_copies_are_named_by_their_digests() -> None:
    assert copy_of("rounds/0007/server.safetensors", "ab") == "rounds/server-ab.safetensors"
    assert copy_of("memory/0/3/0007.safetensors", "ab") == "memory/0/3/0007-ab.safetensors"
    assert copy_of("settings.yaml", "ab") == "settings-ab.yaml"
    letter = copy_of("memory/0/5/inbox/0007-3.safetensors", "1-2")
    assert sender_of(letter) == 3
    assert folders_of_clients([5]) == {"memory/0/5", "memory/0/5/inbox"}


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


def test_what_waits_for_a_remote_store_that_is_gone_does_not_try_it_too(
    home: Path, small: Make, weak: Weak, url: str
) -> None:
    """One cohort after the other would wait as long as the first, where the store is silent."""
    run = new_run(small(rounds=1))
    pool = RemoteFilesPool(Elsewhere(), url)
    weak.gone = True
    with pytest.raises(RemoteFilesGone) as first:
        go_on(run, pool.call)
    asked: list[str] = []
    weak.gone = False
    weak.fails = lambda act, path: bool(asked.append(act))
    with pytest.raises(RemoteFilesGone) as second:
        pool.call(Train(run.path, 1, (), ()))
    assert str(second.value) == str(first.value)
    assert not asked
