"""`make chaos-sites`: every fault of a study over NVFlare, with real processes, and their table in docs/reliability.md.

Each fault happens in round 2 of a run over three sites that all must take part. Afterwards the run has the bits of an
undisturbed one: by itself, or resumed after it stopped with a sentence.

    python -m tests.chaos.on_network [FAULT ...]
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten

import numpy as np
import yaml

from shoal.core.errors import ShoalError
from shoal.engine.sites.pools import open_pool
from shoal.engine.sites.server import ServerTransport, status_of
from shoal.engine.sites.study import CERTIFICATE, Study, make_study
from shoal.engine.store.run_events import Event
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.starting import new_run
from tests.chaos.slow_line import Line
from tests.conftest import at_home
from tests.engine.sites.test_site_bits import run_in_one_place, settings_of
from tests.network import LEAD, SHOAL, Network, network, write_policy
from tests.runs import go_on
from tests.sites import Federation, Pipes, add_own_set, name_of
from tests.sources import ROOT

NAMES = ("east", "north", "south")
VICTIM = "north"
PAGE = ROOT / "docs" / "reliability.md"
MARKS = ("<!-- From make chaos-sites. -->\n", "<!-- End of make chaos-sites. -->")
WORKERS = {"runner": "sites", "device": "cpu"}
LIAR = """
import sys, torch
from shoal.engine.sites import agent
from shoal.engine.store.codec import tensor_bytes, tensors_of
honest = agent.SiteAgent.answers
def answers(self, work, results):
    facts, back = honest(self, work, results)
    for fact in facts.values():
        for name, sha256 in fact["done"]["sha256"].items():
            tensors, about = tensors_of(back[sha256], "a file")
            lie = tensor_bytes({key: torch.cat([each, each]) for key, each in tensors.items()}, about)
            back[agent.digest(lie)] = lie
            fact["done"]["sha256"][name] = agent.digest(lie)
    return facts, back
agent.SiteAgent.answers = answers
from shoal.cli.main import entry
entry()
"""
"""A site that doubles every tensor, and gives the right digests."""


@dataclass
class Trial:
    """The study on which faults are tried.

    Args:
        made: its processes.
        line: of the victim to the server.
        sha256: of the last state of an undisturbed run.
    """

    made: Network
    line: Line
    sha256: str
    mend: Callable[[], object] = field(default=lambda: None)
    """Takes a fault away before a run that stopped is resumed."""

    @property
    def study(self) -> Study:
        assert self.made.study is not None
        return self.made.study

    def run(self, act: Callable[[], object], **workers: object) -> str:
        """Run over the sites with a fault in round 2, with more settings of workers; say how it ended."""
        run = new_run(settings_of("fedkmeans", workers={**WORKERS, **workers}, participation={"minimum": 1.0}))
        acted: list[Event] = []

        def watch(event: Event) -> None:
            if event.kind == "client_finished" and event.round == 2 and not acted:
                acted.append(event)
                act()

        try:
            finish(run, (watch,))
            ended = "went on by itself"
        except ShoalError as error:
            ended = f"stopped, resumed: {reason(str(error))}"
            self.mend()
            finish(run)
        return f"{ended} | {self.bits(run)}"

    def bits(self, run: RunFolder) -> str:
        return "yes" if run.status().weights_sha256 == self.sha256 else "NO"


def reason(message: str) -> str:
    """Why a run stopped, without what differs from one time to the next: step, round and digest of the code."""
    last = re.sub(r"^[^:]*: | in round \d+", "", message.splitlines()[0].split(". ")[-1])
    return shorten(re.sub(r"[0-9a-f]{12}", "...", last), 62, placeholder=" ...")


def finish(run: RunFolder, observers: tuple[Callable[[Event], None], ...] = ()) -> None:
    with open_pool(run.settings().workers, "cpu") as pool:
        go_on(run, pool.call, observers, slots=3)


def site_killed(trial: Trial) -> str:
    """a site's process killed"""
    return trial.run(lambda: trial.made.kill(VICTIM))


def site_away(trial: Trial) -> str:
    """a site's process killed, and away for 20 s"""

    def act() -> None:
        trial.made.kill(VICTIM, keep=False)
        threading.Timer(20, trial.made.start, [VICTIM]).start()

    return trial.run(act)


def server_killed(trial: Trial) -> str:
    """the lead's server killed"""
    return trial.run(lambda: trial.made.kill(LEAD))


def lead_killed(trial: Trial) -> str:
    """the lead's run killed"""
    home = trial.made.home(LEAD)
    settings = settings_of("fedkmeans", workers=WORKERS, tracking={"mlflow": False})
    (home / "settings.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(settings.to_json()))))
    before = set((home / "runs").glob("*"))
    process = subprocess.Popen(
        [*SHOAL, "run", "settings.yaml"],
        env=trial.made.environment(LEAD),
        cwd=home,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        if any(path.exists() for run in set((home / "runs").glob("*")) - before for path in run.glob("rounds/0001/*")):
            break
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (run,) = set((home / "runs").glob("*")) - before
    trial.made.shoal(LEAD, "run", "--resume", run.name)
    return f"resumed | {trial.bits(RunFolder(run))}"


def connection_cut(trial: Trial) -> str:
    """a site's connection cut"""
    return trial.run(trial.line.cut)


def too_late(trial: Trial) -> str:
    """a site's answer after the deadline (its process stopped)"""
    group = trial.made.processes[VICTIM].pid
    trial.mend = lambda: os.killpg(group, signal.SIGCONT)
    return trial.run(lambda: os.killpg(group, signal.SIGSTOP), timeout=0.1)


def other_code(trial: Trial) -> str:
    """a site with other code (one comment more)"""
    other = trial.made.folder / "other-code"
    shutil.copytree(ROOT / "shoal", other / "shoal", ignore=shutil.ignore_patterns("__pycache__"))
    with (other / "shoal" / "core" / "errors.py").open("a") as file:
        file.write("# another\n")

    def act() -> None:
        trial.made.variables[VICTIM] = {"PYTHONPATH": str(other)}
        trial.made.kill(VICTIM)

    def mend() -> None:
        del trial.made.variables[VICTIM]
        trial.made.kill(VICTIM)

    trial.mend = mend
    return trial.run(act)


def another_authority(trial: Trial) -> str:
    """a site with the certificate of another authority"""
    elsewhere = trial.made.folder / "elsewhere"
    made = Network(elsewhere, ("west",))
    for name in (LEAD, "west"):
        made.home(name).mkdir(parents=True)
    made.join("west", make_study(made.home(LEAD), "digits", "localhost", trial.study.port))
    return stays_out(trial, made.home("west") / "site" / CERTIFICATE)


def another_name(trial: Trial) -> str:
    """a site under another name than that of its certificate"""
    return stays_out(trial, trial.made.home("south") / "site" / CERTIFICATE)


def stays_out(trial: Trial, certificate: Path) -> str:
    """Have a site `west` try to connect with a certificate, while a run goes on."""
    place = trial.made.home("west") / "site"
    shutil.rmtree(place.parent, ignore_errors=True)
    shutil.copytree(certificate, place / CERTIFICATE)
    kit = json.loads((place / CERTIFICATE / "fed_client.json").read_text())
    kit["client"]["fqsn"] = "west"
    (place / CERTIFICATE / "fed_client.json").write_text(json.dumps(kit))
    trial.made.start("west")
    ended = trial.run(lambda: time.sleep(10))
    approved = trial.study.folder / "approved" / "west.signed.zip"
    shutil.copyfile(trial.study.folder / "approved" / "south.signed.zip", approved)
    seen = status_of(trial.study)["west"].seen
    approved.unlink()
    trial.made.kill("west", keep=False)
    return f"it never connected; the run {ended}" if seen is None else "IT CONNECTED | NO"


def refusing_policy(trial: Trial) -> str:
    """a policy that refuses"""
    home = trial.made.home(VICTIM)
    before = yaml.safe_load((home / "site" / "policy.yaml").read_text())
    trial.mend = lambda: write_policy(home, before)
    return trial.run(lambda: write_policy(home, {**before, "methods": []}))


def random_bytes(trial: Trial) -> str:
    """random bytes to the server's port and socket"""

    def act() -> None:
        for family, address in (
            (socket.AF_INET, ("127.0.0.1", trial.study.port)),
            (socket.AF_UNIX, str(trial.study.socket)),
        ):
            with contextlib.suppress(OSError), socket.socket(family) as link:
                link.connect(address)
                link.sendall(np.random.default_rng(0).bytes(1 << 20))

    return trial.run(act)


def wrong_shapes(trial: Trial) -> str:
    """messages of wrong shape with right digests"""

    def act() -> None:
        trial.made.commands[VICTIM] = (sys.executable, "-P", "-c", LIAR)
        trial.made.kill(VICTIM)

    def mend() -> None:
        del trial.made.commands[VICTIM]
        trial.made.kill(VICTIM)

    trial.mend = mend
    return trial.run(act)


def much(trial: Trial) -> str:
    """200 MB to a site"""
    content = np.random.default_rng(0).bytes(200 << 20)
    began = time.monotonic()
    answer = ServerTransport(trial.study).ask("south", content)
    right = b"no message of Shoal" in answer and time.monotonic() - began < 10
    return f"there within 10 s; that site then refuses what is no message | {'yes' if right else 'NO'}"


def slow_line(trial: Trial) -> str:
    """a line of 20 kB/s"""

    def act() -> None:
        trial.line.rate = 20e3

    ended = trial.run(act)
    trial.line.rate = None
    return ended


FAULTS = (
    site_killed,
    site_away,
    server_killed,
    lead_killed,
    connection_cut,
    too_late,
    other_code,
    another_authority,
    another_name,
    refusing_policy,
    random_bytes,
    wrong_shapes,
    much,
    slow_line,
)


@contextlib.contextmanager
def trials(folder: Path) -> Iterator[Trial]:
    """Start a study with three sites, of which the victim's line can be cut."""
    with network(folder / "study", NAMES) as made:
        assert made.study is not None
        made.sets = {
            "vector": [add_own_set(made.home(n) / "data" / "store", "vector", 60, i) for i, n in enumerate(NAMES)]
        }
        made.allow(
            data=[name_of("vector")],
            methods=["fedkmeans"],
            min_samples=1,
            min_group=1,
            masked=False,
            keys={},
            rounds_a_day=10_000,
        )
        line = Line(made.study.port)
        path = made.home(VICTIM) / "site" / CERTIFICATE / "fed_client.json"
        path.write_text(path.read_text().replace(f":{made.study.port}", f":{line.port}"))
        for name in (LEAD, *NAMES):
            made.start(name)
        (folder / "one-place").mkdir()
        federation = Federation(made.folder, Pipes({}), made.sets)
        whole = run_in_one_place(federation, settings_of("fedkmeans"), "vector", folder / "one-place")
        with at_home(made.home(LEAD)):
            yield Trial(made, line, whole.status().weights_sha256)
        line.close()


def main() -> None:
    """Try the faults that the command line names, by default all; write the table of all."""
    wanted = [fault for fault in FAULTS if fault.__name__ in sys.argv[1:]] or FAULTS
    rows = []
    with tempfile.TemporaryDirectory(prefix="shoal-chaos-sites-") as folder, trials(Path(folder)) as trial:
        for fault in wanted:
            began = time.monotonic()
            trial.mend = lambda: None
            try:
                ended = fault(trial)
            except Exception as error:
                ended = f"{type(error).__name__}: {str(error)[:300]} | NO"
            rows.append(f"| {fault.__doc__} | {time.monotonic() - began:.0f} | {ended} |".replace(folder, ""))
            print(rows[-1], flush=True)
    if wanted is FAULTS:
        shown = [f"|{row.split('|')[1]}|{row.split('|')[3]}|" for row in rows]
        before, _, rest = PAGE.read_text().partition(MARKS[0])
        after = rest.partition(MARKS[1])[2]
        same = sum(row.endswith(" yes |") for row in rows)
        head = f"\n{len(rows)} faults, {same} to the same bits:\n\n| fault | the run |\n|---|---|\n"
        PAGE.write_text(before + MARKS[0] + head + "\n".join(shown) + "\n\n" + MARKS[1] + after)
    if any(row.endswith("| NO |") for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
