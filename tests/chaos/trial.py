"""One try: a run to which something happens at a random moment, and which is then taken up to its end."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shoal.data.sets.prepare import store_folder
from shoal.engine.settings import places
from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import Settings, make_settings
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.status import FINISHED
from shoal.lifecycle.starting import new_run
from shoal.methods.registry import BUILT_IN as METHODS
from tests.chaos.nursery import Driver, Nursery, Odd
from tests.chaos.tally import Outcome
from tests.conftest import SMALL
from tests.engine.rounds.test_every_method_runs import CASES as EVERY_METHOD
from tests.engine.test_recorded_bits import CASES, write_sets
from tests.runs import go_on, numbers, straight

HANGS = 180.0
"""Seconds after which a driver hangs; a run of these takes a few."""
TRACEBACK = "Traceback (most recent call last)"
WORKERS = {"slots": 2}
FURTHER: dict[str, dict[str, Any]] = {
    "fedsimclr_kmeans": {"method": {"name": "fedsimclr_kmeans", "kmeans_rounds": 3}, "rounds": 5},
    **{name: EVERY_METHOD[name] for name in ("fedsimclr_kmeans", "fedx", "fedu2")},
}
"""Methods that have no recorded case."""


def settings_of(method: str, **changes: Any) -> Settings:
    """Small settings of a run of a method, on two slots; drivers of the nursery have timeouts of seconds."""
    case = FURTHER.get(method) or next(case for case in CASES.values() if case["method"]["name"] == method)
    base = merge(SMALL, {"rounds": 2, "augment": {"recipe": "digits"}, "data": {"limit": 160}, "workers": WORKERS})
    case = {key: value for key, value in case.items() if key != "workers"}
    for key in ("method", "partition"):
        base = {**base, key: case.pop(key, base[key])}
    # A client whose worker is killed by chance several times is not to be left out.
    return make_settings(merge(base, case, {"participation": {"retries": 5}}, changes))


@dataclass
class Chaos:
    """Where tries are made.

    Args:
        nursery: starts drivers.
        seed: of all that is random.
        whole: the numbers of the straight run of each method.
    """

    nursery: Nursery
    seed: int
    whole: dict[str, Any] = field(default_factory=dict)

    def run(self, method: str, **changes: Any) -> RunFolder:
        """A new run of a method, of which nothing is done."""
        if not (store_folder(places.store(), "colour") / "manifest.json").exists():
            write_sets()
        return new_run(settings_of(method, **changes))

    def straight(self, method: str) -> Any:
        """What a run of a method comes to where nothing happens."""
        if method not in self.whole:
            self.whole[method] = numbers(straight(settings_of(method)))
        return self.whole[method]


@dataclass
class Trial:
    """A run to which something happens.

    Args:
        chaos: where.
        method: of the run.
        random: draws of this try.
    """

    chaos: Chaos
    method: str
    random: random.Random
    drivers: list[Driver] = field(default_factory=list)
    hung: bool = False
    notes: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables of all its drivers."""

    def __post_init__(self) -> None:
        self.whole = self.chaos.straight(self.method)
        self.folder = self.chaos.run(self.method)

    def start(self, odd: Odd | None = None, folder: RunFolder | None = None) -> Driver:
        """A driver of the run."""
        odd = odd or Odd()
        odd = replace(odd, env={**self.env, **odd.env})
        driver = self.chaos.nursery.start((folder or self.folder).path, odd)
        self.drivers.append(driver)
        return driver

    def at_random(self, driver: Driver, folder: RunFolder | None = None) -> bool:
        """Wait for a random moment of the run, start and end included; False where it ended before.

        A moment is a number of further events of the run (a client is done, a round is closed), and up to a tenth of a
        second after it.
        """
        folder = folder or self.folder
        before = len(folder.events())
        more = self.random.randint(0, 14)
        until = time.monotonic() + HANGS
        while len(folder.events()) < before + more and time.monotonic() < until:
            if driver.ended:
                return False
            time.sleep(0.005)
        time.sleep(self.random.random() * (0.1 if more else 1.0))
        return not driver.ended

    def end(self, driver: Driver) -> int | None:
        """Wait for a driver's end: its exit code; None where it hangs, and is killed."""
        until = time.monotonic() + HANGS
        while not driver.ended:
            if time.monotonic() > until:
                self.hung = True
                self.notes.append(f"driver hangs: {driver.said()[-300:]}")
                kill(driver)
                until += HANGS
            time.sleep(0.02)
        code = driver.code()
        return None if self.hung else code

    def finish(self, folder: RunFolder | None = None) -> bool:
        """Take a run up to its end, one time in three as a user does; whether it came to the same numbers."""
        folder = folder or self.folder
        if self.random.random() < 1 / 3 and not self.hung:
            self.end(self.start(folder=folder))
        else:
            go_on(folder)
        if folder.status().state != FINISHED:
            self.notes.append(f"it is {folder.status().state}: {folder.status().message[:300]}")
            return False
        if numbers(folder) != self.whole:
            self.notes.append("other numbers than the straight run")
            return False
        return True

    def outcome(self, event: str, same: bool) -> Outcome:
        """What became of the try."""
        said = [driver.said() for driver in self.drivers]
        shown = [text for text in said if TRACEBACK in text]
        if shown:
            where = shown[0].index(TRACEBACK)
            self.notes.append(shown[0][max(0, where - 500) : where + 3000])
        return Outcome(event, self.method, same and not self.hung, self.hung, bool(shown), "; ".join(self.notes))


def kill(driver: Driver) -> None:
    """SIGKILL to a driver."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(driver.pid, signal.SIGKILL)


@contextlib.contextmanager
def chaos_in(home: Path, seed: int) -> Iterator[Chaos]:
    """A place for tries, in an empty home folder that SHOAL_HOME names."""
    nursery = Nursery(home)
    try:
        yield Chaos(nursery, seed)
    finally:
        nursery.close()


def methods() -> list[str]:
    """Every registered method."""
    return list(METHODS)


Event = Callable[[Trial], bool]
"""Lets something happen to a run and takes it up to its end; whether it came to the same numbers."""
