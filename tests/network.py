"""A study and its sites on this machine, each with a home of its own, as processes of `shoal sites` and `shoal site`.

Processes that end unasked are started again, as systemd would.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from shoal.core.durable import lock_if_free, owner_of
from shoal.data.sets.prepared import PreparedSet
from shoal.engine.sites.own_rules import OwnRules
from shoal.engine.sites.study import Study, approve, make_study, package, request
from shoal.engine.store.code_version import shoal_version
from tests.sources import ROOT

STUDY = "digits"
LEAD = "lead"
SHOAL = (sys.executable, "-P", "-m", "shoal.cli.main")


def die_with_parent() -> None:
    """Have Linux kill this process when the thread that started it ends."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@dataclass
class Network:
    """A study and its sites.

    Args:
        folder: of their homes.
        names: of the sites.
    """

    folder: Path
    names: Sequence[str]
    study: Study | None = None
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    """Names of processes that are started again where they end."""
    variables: dict[str, dict[str, str]] = field(default_factory=dict)
    """Other environment variables of a process."""
    commands: dict[str, Sequence[str]] = field(default_factory=dict)
    """Other programs in place of `shoal`."""
    sets: dict[str, list[PreparedSet]] = field(default_factory=dict)
    """Sets of the sites, in the order of their names, by kind."""
    ended: threading.Event = field(default_factory=threading.Event)

    def home(self, name: str) -> Path:
        return self.folder / name

    def environment(self, name: str) -> dict[str, str]:
        home = str(self.home(name))
        path = f"{ROOT}:{ROOT / 'research'}"
        return {
            **os.environ,
            "SHOAL_HOME": home,
            "HOME": home,
            "PYTHONPATH": path,
            "OMP_NUM_THREADS": "1",
        } | self.variables.get(name, {})

    def make(self) -> None:
        """Have the lead make a study, and each site join it."""
        for name in (LEAD, *self.names):
            self.home(name).mkdir(parents=True)
        self.study = make_study(self.home(LEAD), STUDY, "localhost", free_port())
        for name in self.names:
            self.join(name, self.study)

    def join(self, name: str, study: Study) -> None:
        place = self.home(name) / "site"
        _, signed = approve(study, request(place, STUDY, name))
        package(place, signed, study.fingerprint)

    def allow(self, **policy: object) -> None:
        """Write the policy of each site, by which runs with masked sums may go on at once."""
        keys = {name: OwnRules(self.home(name) / "site").public_key for name in self.names}
        for name in self.names:
            others = {other: key for other, key in keys.items() if other != name}
            allowed = {"code": [shoal_version().sha256], "clip": None, "noise": 0, "epsilon": None, "approve": "all"}
            write_policy(self.home(name), {**allowed, "keys": others, **policy})

    def start(self, name: str) -> None:
        """Start the server or a site, and keep it up."""
        words = ("sites", "serve") if name == LEAD else ("site", "serve")
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*self.commands.get(name, SHOAL), *words],
                env=self.environment(name),
                cwd=self.home(name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.kept.add(name)

    def kill(self, name: str, *, keep: bool = True) -> None:
        """Kill the server or a site, and leave it so unless it is kept."""
        if not keep:
            self.kept.discard(name)
        process = self.processes[name]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def watch(self) -> None:
        """Start again what ended, until all is to end."""
        while not self.ended.wait(0.2):
            for name in list(self.kept):
                if self.processes[name].poll() is not None and name in self.kept:
                    self.start(name)

    def end_left(self) -> None:
        """Kill what an earlier process left running in these homes: it holds a lock there."""
        for lock in self.folder.glob("*/site*/serve.lock"):
            with lock_if_free(lock) as free:
                if not free:
                    os.killpg(int(owner_of(lock)), signal.SIGKILL)

    def shoal(self, name: str, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command in the home of the lead or of a site."""
        done = subprocess.run(
            [*SHOAL, *words],
            env=self.environment(name),
            cwd=self.home(name),
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=die_with_parent,
        )
        if check and done.returncode:
            raise RuntimeError(f"{name}: shoal {' '.join(words)}: {done.stdout}{done.stderr}")
        return done


def write_policy(home: Path, policy: dict[str, object]) -> None:
    (home / "site" / "policy.yaml").write_text(yaml.safe_dump(policy))


@contextmanager
def network(folder: Path, names: Sequence[str]) -> Iterator[Network]:
    """Make a study and its sites in a folder, which is emptied first; end all their processes at the end."""
    made = Network(folder, names)
    made.end_left()
    shutil.rmtree(folder, ignore_errors=True)
    made.make()
    watcher = threading.Thread(target=made.watch, daemon=True)
    watcher.start()
    try:
        yield made
    finally:
        made.ended.set()
        watcher.join()
        for name in made.processes:
            made.kill(name)
