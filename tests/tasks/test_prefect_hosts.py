"""Hosts that take clients' work from a real Prefect server: the same bits, whatever becomes of a host or of the run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.cluster_work import ClusterLost
from engine.pools import open_pool
from engine.run_folder import RunFolder
from engine.settings import SettingsError
from engine.wire_text import text_of
from tasks import prefect_pool
from tasks.prefect_pool import PrefectPool
from tasks.starting import new_run
from tests.flows.test_prefect import Server
from tests.runs import go_on, numbers, straight

Make = Callable[..., Any]
ROOT = Path(__file__).parent.parent.parent
PATIENCE = 120
"""Seconds for what takes seconds on an idle machine."""
LONG = {"local": {"epochs": 60}, "partition": {"kind": "iid", "clients": 4}, "rounds": 1}
"""Clients that are at work for a second."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    one = Server(tmp_path_factory.mktemp("prefect"))
    yield one
    one.stop()


class Hosts:
    """`shoal work` in processes that have folders of their own."""

    def __init__(self, server: Server, folder: Path) -> None:
        self._server, self.folder = server, folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *options: str) -> subprocess.Popen[bytes]:
        own = self.folder / name
        own.mkdir(parents=True)
        env = {**self._server.env, "SHOAL_HOME": str(own), "SHOAL_CACHE": str(own / "cache")}
        env["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
        command = [sys.executable, "-m", "cli.main", "work", "--slots", "1", "--device", "cpu", *options]
        with (own / "log").open("wb") as log:
            self.running[name] = subprocess.Popen(
                command, env=env, cwd=own, stdout=log, stderr=log, start_new_session=True
            )
        return self.running[name]

    def group(self, name: str) -> list[psutil.Process]:
        """The processes of a host: all of them die where a machine does."""
        with contextlib.suppress(psutil.NoSuchProcess):
            first = psutil.Process(self.running[name].pid)
            return [first, *first.children(recursive=True)]
        return []

    def signal(self, name: str, what: signal.Signals) -> None:
        for process in self.group(name):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(what)

    def end(self) -> None:
        for name in list(self.running):
            self.signal(name, signal.SIGKILL)
            self.running.pop(name).wait()
        # The server lists them for another second or two: the next test would give them work.
        if self._server.process.poll() is None:
            soon(lambda: self._server.find("task_workers") == [])

    def log(self, name: str) -> str:
        return (self.folder / name / "log").read_text()


@pytest.fixture
def hosts(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    found = Hosts(server, tmp_path_factory.mktemp("hosts"))
    yield found
    found.end()


@pytest.fixture
def there(
    server: Server, home: Path, small: Make, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Make:
    """Makes settings of a run on hosts that see nothing of this process but a folder of remote files."""
    monkeypatch.setenv("PREFECT_API_URL", server.api)
    depot = tmp_path_factory.mktemp("depot").as_uri()

    def nowhere(plain: dict[str, Any]) -> str:
        return text_of({**plain, **{key: "/nowhere" for key in ("run", "server") if key in plain}})

    monkeypatch.setattr(prefect_pool, "text_of", nowhere)

    def make(**changes: Any) -> Any:
        workers = {"runner": "prefect", "slots": "auto", "depot": depot, **changes.pop("workers", {})}
        return small(**changes, workers=workers)

    return make


def soon(holds: Callable[[], bool], seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came to hold"
        time.sleep(0.1)


@contextlib.contextmanager
def pool_of(settings: Any, count: int) -> Iterator[tuple[Any, PrefectPool]]:
    """The pool of a run on so many hosts, and what is below the remote files."""
    with open_pool(settings.workers, "cpu") as pool:
        below: Any = pool._pool  # type: ignore[attr-defined]
        soon(lambda: below.count == count)
        yield pool, below


def test_hosts_give_the_same_bits(there: Make, small: Make, hosts: Hosts, server: Server) -> None:
    for name in ("one", "two"):
        hosts.start(name)
    settings = there(rounds=2)
    with pool_of(settings, 2) as (pool, below):
        assert below.most > 64, "requests wait here for hosts that join"
        run = straight(settings, pool.call, slots=2)
    assert numbers(run) == numbers(straight(small(rounds=2)))
    for name in ("one", "two"):
        assert list((hosts.folder / name / "cache" / "runs").iterdir()), "each host had work"
    assert not left(server), "nothing of a run stays behind"


def left(server: Server) -> list[str]:
    """The requests and answers that are at the server."""
    kinds = [each["type"] or "" for each in server.find("artifacts", limit=100)]
    return [kind for kind in kinds if kind.startswith("shoal")]


@pytest.mark.slow
def test_a_host_that_is_killed_loses_nothing(
    there: Make, small: Make, hosts: Hosts, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefect_pool, "GONE", 3.0)
    for name in ("one", "two"):
        hosts.start(name)
    settings = there(**LONG)
    killed: list[float] = []
    with pool_of(settings, 2) as (pool, below):

        def watch(event: dict[str, Any]) -> None:
            if event["event"] == "client_finished" and not killed:
                name = stop_in_the_middle(hosts, below)
                hosts.signal(name, signal.SIGKILL)
                hosts.running.pop(name).wait()
                killed.append(time.monotonic())

        run = straight(settings, pool.call, [watch], slots=2)
        assert below.count == 1
        assert time.monotonic() - killed[0] < PATIENCE, "it hung"
    assert numbers(run) == numbers(straight(small(**LONG)))
    (lost,) = [e["message"] for e in run.events() if e["event"] == "slot_lost"]
    assert "it is not connected to Prefect's server any more" in lost
    assert not left(server)


def stop_in_the_middle(hosts: Hosts, pool: PrefectPool) -> str:
    """Stop a host that has work and no answer yet: one that still has it when it has been stopped a while."""
    for _ in range(20):
        for name in list(hosts.running):
            key = next(iter(keys_of(hosts, name, pool)), "")
            if not unanswered(pool, key):
                continue
            hosts.signal(name, signal.SIGSTOP)
            time.sleep(0.5)  # in which an answer that was on its way arrives
            if unanswered(pool, key):
                return name
            hosts.signal(name, signal.SIGCONT)
        time.sleep(0.1)
    raise AssertionError("no host was at work")


def unanswered(pool: PrefectPool, key: str) -> bool:
    return any(given.key == key and given.answer is None for given in list(pool._given.values()))


def keys_of(hosts: Hosts, name: str, pool: PrefectPool) -> list[str]:
    """The keys of a host: of those that are connected, the ones that its process id stands with."""
    found = pool._channel._ask("/task_workers/filter", {})
    pid = f"-{hosts.running[name].pid}"
    return [key for worker in found if worker["identifier"].endswith(pid) for key in worker["task_keys"]]


@pytest.mark.slow
def test_a_host_that_is_stopped_is_given_up_within_a_minute(there: Make, small: Make, hosts: Hosts) -> None:
    """As one whose machine lost its power: nobody closes its connection."""
    for name in ("one", "two"):
        hosts.start(name)
    settings = there(**LONG)
    stopped: list[float] = []
    with pool_of(settings, 2) as (pool, below):

        def watch(event: dict[str, Any]) -> None:
            if event["event"] == "client_finished" and not stopped:
                stop_in_the_middle(hosts, below)
                stopped.append(time.monotonic())

        run = straight(settings, pool.call, [watch], slots=2)
        assert time.monotonic() - stopped[0] < PATIENCE, "it hung"
    assert numbers(run) == numbers(straight(small(**LONG)))


def test_without_hosts_a_run_ends_resumable(there: Make, small: Make, server: Server) -> None:
    settings = there(rounds=2, workers={"empty": 3.0})
    run = new_run(settings)
    with open_pool(settings.workers, "cpu") as pool, pytest.raises(ClusterLost) as lost:
        go_on(run, pool.call)
    said = str(lost.value)
    assert f"no host has served this run at the Prefect server {server.api} for" in said
    assert f"start `PREFECT_API_URL={server.api} shoal work --device cpu` on at least one host" in said
    assert f"shoal run --resume {run.name}" in said
    assert run.status()["state"] == "failed"
    go_on(run)
    assert numbers(run) == numbers(straight(small(rounds=2)))


def driver_of(run: RunFolder, server: Server, home: Path) -> subprocess.Popen[str]:
    env = {**server.env, "SHOAL_HOME": str(home), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-m", "cli.main", "run", "--resume", str(run.path)]
    return subprocess.Popen(command, env=env, cwd=home, stderr=subprocess.PIPE, text=True)


def slots_of(hosts: Hosts, name: str) -> list[psutil.Process]:
    """The processes in which a host works: forked from a child of its own."""
    first, *others = hosts.group(name)
    return [process for process in others if process.is_running() and process.ppid() != first.pid]


def unended(server: Server) -> list[str]:
    runs = server.find("task_runs", limit=200)
    return [run["name"] for run in runs if run["state_type"] not in prefect_pool.ENDED]


@pytest.mark.parametrize("how", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_interrupted_run_leaves_no_work_with_its_hosts(
    there: Make, small: Make, hosts: Hosts, server: Server, home: Path, how: signal.Signals
) -> None:
    hosts.start("one")
    forever = {"local": {"epochs": 100_000}, "partition": {"kind": "iid", "clients": 2}, "rounds": 1}
    run = new_run(there(**forever))
    driver = driver_of(run, server, home)
    try:
        soon(lambda: any(r["state_type"] == "RUNNING" for r in server.find("task_runs", limit=200)))
        soon(lambda: len(slots_of(hosts, "one")) == 1)
        time.sleep(3.0)  # in which it learns with all its might
        (slot,) = slots_of(hosts, "one")
        driver.send_signal(how)
        _, said = driver.communicate(timeout=60)  # a hang fails here
    finally:
        driver.kill()
    assert driver.returncode == 130
    assert "Traceback" not in said
    assert run.status()["state"] == "interrupted"
    assert not left(server)
    soon(lambda: not unended(server), 90)
    soon(lambda: not slot.is_running(), 90)  # which would be at work for hours
    settings = there(rounds=1)
    with pool_of(settings, 1) as (pool, _):  # and the host's only slot is free
        assert numbers(straight(settings, pool.call)) == numbers(straight(small(rounds=1)))


@pytest.mark.slow
def test_the_work_of_hosts_is_shown_below_the_flow_run(
    there: Make, small: Make, hosts: Hosts, server: Server, home: Path
) -> None:
    """Of one flow run, which Prefect would take for runs of one task with the same parameters: none."""
    for name in ("one", "two"):
        hosts.start(name)
    run = new_run(there(rounds=2, tracking={"prefect": "on"}))
    driver = driver_of(run, server, home)
    _, said = driver.communicate(timeout=2 * PATIENCE)
    assert driver.returncode == 0, said
    assert numbers(run) == numbers(straight(small(rounds=2)))
    flow_run = run.lineage()["prefect"]["flow_run"]

    def done() -> list[str]:
        found = server.find("task_runs", limit=200, flow_runs={"id": {"any_": [flow_run]}})
        return [each["name"] for each in found if each["state_type"] == "COMPLETED" and ", on " in each["name"]]

    soon(lambda: {name.rpartition(",")[0] for name in done()} >= {"round 1, evaluate", "round 2, evaluate"})
    assert any(name.startswith("round 2, clients") for name in done())


@pytest.mark.slow
def test_a_server_that_is_started_anew_costs_a_try(
    home: Path, small: Make, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Server(tmp_path_factory.mktemp("again"))
    monkeypatch.setenv("PREFECT_API_URL", own.api)
    monkeypatch.setattr(prefect_pool, "PATIENCE", 120.0)
    hosts = Hosts(own, tmp_path_factory.mktemp("hosts"))
    depot = tmp_path_factory.mktemp("depot").as_uri()
    settings = small(**LONG, workers={"runner": "prefect", "slots": "auto", "depot": depot, "empty": 120.0})
    again: list[Server] = []
    try:
        hosts.start("one")
        with pool_of(settings, 1) as (pool, _):

            def watch(event: dict[str, Any]) -> None:
                if event["event"] == "client_finished" and not again:
                    own.stop()
                    monkeypatch.setattr(sys.modules[Server.__module__], "free_port", lambda: own.port)
                    again.append(Server(Path(own.env["PREFECT_HOME"])))

            run = straight(settings, pool.call, [watch])
        assert numbers(run) == numbers(straight(small(**LONG)))
    finally:
        hosts.end()
        for each in (own, *again):
            each.stop()


@contextlib.contextmanager
def web_server(status: int) -> Iterator[str]:
    """A server that is no Prefect server: it gives the same answer to everything."""

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"<html>welcome</html>")

        do_GET = do_POST  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (None, r"^workers\.runner: prefect needs Prefect's server; PREFECT_API_URL is not set: set it to"),
        ("http://127.0.0.1:9/api", r"PREFECT_API_URL: http://127\.0\.0\.1:9/api does not answer as a Prefect server"),
        ("nonsense", r"PREFECT_API_URL: nonsense does not answer as a Prefect server"),
        (200, r"PREFECT_API_URL: http://127\.0\.0\.1:\d+ does not answer as a Prefect server"),
        (404, r"PREFECT_API_URL: http://127\.0\.0\.1:\d+ does not answer as a Prefect server"),
        (401, r"PREFECT_API_URL: http://127\.0\.0\.1:\d+ asks for a password: set PREFECT_API_AUTH_STRING"),
    ],
)
def test_a_wrong_address_is_refused_before_work(
    home: Path, small: Make, monkeypatch: pytest.MonkeyPatch, url: str | int | None, said: str
) -> None:
    with contextlib.ExitStack() as stack:
        if isinstance(url, int):
            url = stack.enter_context(web_server(url))
        if url is not None:
            monkeypatch.setenv("PREFECT_API_URL", url)
        with pytest.raises(SettingsError, match=said) as refused:
            new_run(small(workers={"runner": "prefect"}))
    assert "\n" not in str(refused.value)
    assert not (home / "data").exists(), "nothing was prepared"


def test_a_host_without_a_server_says_so(home: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    command = [sys.executable, "-m", "cli.main", "work", "--slots", "1", "--device", "cpu"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT)
    assert done.returncode == 1
    assert done.stderr.startswith("error PREFECT_API_URL is not set: set it to the address of a Prefect server")
    assert "Traceback" not in done.stderr
