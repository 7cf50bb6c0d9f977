"""Whole nights under kill: the flow `nightly` on a real Prefect server, killed at any moment from its start to its end.

After the kill the set is the old one or the new one, byte for byte. The next night takes in all that is new, and comes
to the champion of a night that nobody killed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.nursery import Driver, Nursery
from tests.chaos.own_sets import NAME, TRACEBACK, digest, dvc, kill, left_beside, write_photos
from tests.chaos.tally import Outcome

ENTRY = "tests.chaos.nights:night"
MODULES = (
    "shoal.flows.nightly",
    "shoal.review.mlflow_log.pyfunc",
    "shoal.review.mlflow_log.tracking",
    "mlflow.pyfunc",
    "tests.chaos.nights",
)
"""What nights import, once for all of them."""
STATE = "state: "
"""Begins the line in which a night says what there is after it."""
HANGS = 600.0
"""Seconds after which a night hangs; it takes 10 to 20."""


@dataclass(frozen=True)
class NightKind:
    """Which night is killed.

    Args:
        first: it is the first one: there is no set, no run and no model before it.
        dvc: the home is a repository of git and DVC.
    """

    first: bool = False
    dvc: bool = False


KINDS: dict[str, NightKind] = {
    "a whole night killed": NightKind(),
    "the first night killed": NightKind(first=True),
    "a whole night killed, in DVC": NightKind(dvc=True),
}
SHARES = (60, 20, 20)
"""How many of a hundred tries are of each kind."""


def night() -> None:
    """Carry out a night of the home in this process, which is forked from a nursery; never returns."""
    from shoal.cli.main import leave
    from shoal.core.errors import ShoalError
    from shoal.engine.settings import places
    from shoal.engine.settings.merge import merge
    from shoal.engine.settings.run_settings import make_settings
    from shoal.flows.nightly import nightly
    from shoal.lifecycle.night_settings import NightSettings
    from shoal.review.served.promotion import champion_with_version
    from tests.conftest import SMALL

    os.chdir(places.home())
    changes = {
        "data": {"name": NAME, "limit": None},
        "partition": {"kind": "auto", "clients": None},
        "model": {"clusters": 2},
        "rounds": 2,
        "tracking": {"mlflow": True},
    }
    settings = make_settings(merge(SMALL, changes))
    try:
        found = nightly(settings, NightSettings(watch="photos", strange=1.0, held_out=0.3))
    except ShoalError as error:
        print(f"error {error}", flush=True)
        leave(1)
    champion = champion_with_version(settings, places.runs())[0]
    assert champion is not None
    state = {"set": found["data"], "champion": champion.status().weights_sha256, "models": models()}
    print(f"{STATE}{json.dumps(state)}", flush=True)
    leave(0)


def models() -> list[tuple[str, str]]:
    """Number and aliases of each registered version."""
    from mlflow import MlflowClient

    from shoal.engine.settings import places
    from shoal.review.mlflow_log.embedded_store import store_uri

    client = MlflowClient(tracking_uri=store_uri(places.mlflow_store()))
    (model,) = client.search_registered_models()
    versions = client.search_model_versions(f"name = '{model.name}'")
    named = {str(version): alias for alias, version in model.aliases.items()}
    return sorted((str(each.version), named.get(str(each.version), "")) for each in versions)


@dataclass(frozen=True)
class Straight:
    """What a night of a kind begins with, and what it comes to where nobody kills it.

    Args:
        template: a home as it is before the night.
        before: digest of the set before it, or why there is none.
        state: what the night says at its end.
        seconds: that it takes.
    """

    template: Path
    before: str
    state: dict[str, Any]
    seconds: float


class Nights:
    """Where nights are killed.

    Args:
        folder: an empty folder.
        draw: all that is random.
    """

    def __init__(self, folder: Path, draw: random.Random) -> None:
        from tests.flows.test_prefect import Server

        self.folder = folder
        self.home = folder / "home"
        self.draw = draw
        (folder / "prefect").mkdir(parents=True)
        (folder / "nursery").mkdir()
        self.server = Server(folder / "prefect")
        names = ("PREFECT_API_URL", "PREFECT_HOME")
        env = {"SHOAL_HOME": str(self.home), **{name: self.server.env[name] for name in names}}
        self.nursery = Nursery(folder / "nursery", MODULES, env)
        self._kinds: dict[str, Straight] = {}
        self._told = ""

    def close(self) -> None:
        """End the server and the nursery."""
        self.nursery.close()
        self.server.stop()

    def attempt(self, event: str) -> Outcome:
        """Kill a night of a kind once, and carry out the next one."""
        straight = self._straight(event)
        self._restore(straight.template)
        notes: list[str] = []
        killed = self.nursery.launch(ENTRY)
        time.sleep(self.draw.random() * straight.seconds)
        late = self._kill(killed)
        between = digest(self.home)
        moment = f"killed {'after its end' if late else self._moment(between == straight.state['set'])}"
        if between not in (straight.before, straight.state["set"]):
            notes.append(f"after the kill it is neither the old set nor the new one: {between}")
        again = self.nursery.launch(ENTRY)
        code = self._end(again)
        if code != 0:
            notes.append(f"the next night ended with {code}: {again.said()[-600:]}")
        elif (state := state_in(again)) != straight.state:
            notes.append(f"after the next night there is {state}, and not {straight.state}")
        notes += self._left(event)
        shown = TRACEBACK in again.said()
        self.nursery.clear()
        return Outcome(event, "night", not notes, code is None, shown, "; ".join([moment, *notes]))

    def _left(self, event: str) -> list[str]:
        """Return what is wrong beside the outcome of the night: files, and DVC's pointer."""
        notes = []
        if digest(self.home) != self._kinds[event].state["set"]:
            notes.append("the set is not the new one")
        if more := left_beside(self.home):
            notes.append(f"left beside it: {more}")
        if KINDS[event].dvc and (status := dvc(self.home, "status", "--quiet", f"data/store/own/{NAME}.dvc")):
            notes.append(f"DVC does not have the new set: {status}")
        return notes

    def _kill(self, driver: Driver) -> bool:
        """Kill a night and, half the time, its workers too; whether it had ended before."""
        late = driver.ended
        kill(driver.pid)
        driver.code()
        if self.draw.random() < 0.5:
            self.nursery.clear()
        return late

    def _moment(self, taken: bool) -> str:
        """Return where the night stood, after what it has written."""
        newest = max(self.home.glob("runs/*/events.jsonl"), key=lambda path: path.stat().st_mtime, default=None)
        last = "" if newest is None else json.loads(newest.read_text().splitlines()[-1])["event"]
        if not taken:
            return "before the set was written"
        return "after the set was written" if last in ("", "pipeline_ended") else f"after {last}"

    def _end(self, driver: Driver) -> int | None:
        """Wait for the end of a night: its exit code; None where it hangs, and is killed."""
        until = time.monotonic() + HANGS
        while not driver.ended:
            if time.monotonic() > until:
                kill(driver.pid)
                driver.code()
                return None
            time.sleep(0.02)
        return driver.code()

    def _restore(self, template: Path) -> None:
        shutil.rmtree(self.home, ignore_errors=True)
        shutil.copytree(template, self.home, symlinks=True)

    def _straight(self, event: str) -> Straight:
        if event not in self._kinds:
            self._kinds[event] = self._prepare(KINDS[event], self.folder / f"template{len(self._kinds)}")
        return self._kinds[event]

    def _prepare(self, kind: NightKind, template: Path) -> Straight:
        shutil.rmtree(self.home, ignore_errors=True)
        write_photos(self.home / "photos", 0, 40)
        if kind.dvc:
            subprocess.run(["git", "init", "-q"], cwd=self.home, check=True)
            dvc(self.home, "init", "--quiet")
        if not kind.first:
            self._whole()
            write_photos(self.home / "photos", 40, 8)
        before = digest(self.home)
        shutil.copytree(self.home, template, symlinks=True)
        began = time.monotonic()
        state = self._whole()
        return Straight(template, before, state, time.monotonic() - began)

    def _whole(self) -> dict[str, Any]:
        """Carry out a night that nobody kills, and return its state."""
        driver = self.nursery.launch(ENTRY)
        if code := self._end(driver):
            raise AssertionError(f"a night ended with {code}: {driver.said()[-2000:]}")
        return state_in(driver)


def state_in(driver: Driver) -> dict[str, Any]:
    """The state that a night has said."""
    line = next(line for line in driver.said().splitlines() if line.startswith(STATE))
    return json.loads(line.removeprefix(STATE))


def planned_nights(count: int, seed: int) -> list[str]:
    """The kind of every try, by their shares, in a random order."""
    events = [event for event, share in zip(KINDS, SHARES, strict=True) for _ in range(share)] * (count // 100 + 1)
    random.Random(f"{seed} nights").shuffle(events)
    return events[:count]


def nights(folder: Path, events: Sequence[str], seed: int) -> Iterator[Outcome]:
    """Tries on whole nights, of these kinds."""
    if not events:
        return
    tries = Nights(folder, random.Random(f"{seed} whole nights"))
    try:
        for event in events:
            yield tries.attempt(event)
    finally:
        tries.close()
