"""Days of a home that nobody touches by hand: files arrive, nights start, a person approves once and rolls back once.

Each day prints a line of JSON of what came of it. The watcher of `shoal serve` decides whether a night begins. Files of
planted kinds come in uneven numbers. On one day a single file is broken, on another one most of them are. A client is
flooded with one kind, and two new kinds appear: the first model that knows one waits for approval, the second one is
promoted and then taken back.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from shoal.cli.model import promote, rollback
from shoal.core.errors import ShoalError
from shoal.engine.settings import places
from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import make_settings
from shoal.flows.nightly import nightly
from shoal.lifecycle.assign_settings import AssignSettings
from shoal.lifecycle.assigning import assign_new
from shoal.lifecycle.night_settings import NightSettings
from shoal.review.results.clusters import cluster_facts
from shoal.review.served.promotion import champion_with_version
from shoal.serving.data_events import FolderWatch
from tests.conftest import SMALL

CLIENTS = ("north", "south", "west")
MODEL = "shoal-kmeans-photos"
SETTINGS: dict[str, Any] = {
    "method": {"name": "kmeans"},
    "data": {"name": "photos", "limit": None},
    "partition": {"kind": "auto", "clients": None},
    "model": {"clusters": 5},
    "rounds": 1,
    "tracking": {"mlflow": True},
}
BROKEN = b"\x89PNG\r\n\x1a\n" + bytes(30)


@dataclass(frozen=True)
class Day:
    """What a day brings.

    Args:
        files: number of files of each kind for each client.
        flood: number of files of a kind for the client south alone.
        broken: number of files that cannot be read.
        mended: the broken files of the day before come again, whole.
        ask: the night's `night.promote` is ask.
        approve: the newest run is approved, the morning after.
        rollback: the champion is taken back, the morning after.
        title: what is special about it.
    """

    files: Mapping[str, int] = field(default_factory=dict)
    flood: Mapping[str, int] = field(default_factory=dict)
    broken: int = 0
    mended: bool = False
    ask: bool = False
    approve: bool = False
    rollback: bool = False
    title: str = ""


KINDS = ("dark", "left", "right")
FIRST = Day(dict.fromkeys(KINDS, 12), title="first")
SPECIAL = (
    FIRST,
    Day(dict.fromkeys(KINDS, 1), broken=1, title="one bad file"),
    Day({"dark": 1}, broken=8, title="mostly bad files"),
    Day({"left": 1}, flood={"dark": 60}, mended=True, title="drift"),
    Day({"bright": 36, "left": 2}, ask=True, approve=True, title="new kind"),
    Day({"top": 36, "right": 2}, rollback=True, title="another kind"),
)
"""The days on which something happens; a short trial has no others."""


def long_plan(seed: int = 0) -> list[Day]:
    """Thirty days: the special ones among days with few files or none."""
    draw = random.Random(seed)
    days = list(SPECIAL)
    kinds = {0: KINDS, 5: (*KINDS, "bright"), 6: (*KINDS, "bright", "top")}
    plan: list[Day] = []
    for number, day in enumerate(days, 1):
        plan.append(day)
        if day.broken > 1:
            continue  # the files come again on the very next day
        known = kinds[max(key for key in kinds if key <= number)]
        for _ in range(5 if number < len(days) else 4):
            counts = {kind: draw.choice((0, 0, 1, 2)) for kind in known}
            if draw.random() < 0.4:
                counts = {}
            plan.append(Day({kind: count for kind, count in counts.items() if count}))
    return plan


def image(kind: str, rng: np.random.Generator) -> Image.Image:
    """A grey image of a kind; no two are equal."""
    pixels = rng.integers(0, 40, (12, 12))
    part = {
        "dark": np.s_[:0],
        "left": np.s_[:, :6],
        "right": np.s_[:, 6:],
        "bright": np.s_[:],
        "top": np.s_[:6],
    }[kind]
    pixels[part] += 180
    return Image.fromarray(pixels.astype(np.uint8))


class Home:
    """The home with its folders of new files, day by day."""

    def __init__(self) -> None:
        self.incoming = places.home() / "incoming"
        self.inbox = places.home() / "inbox"
        self.inbox.mkdir()
        self.rng = np.random.default_rng(0)
        self.count = 0
        self.broken: list[Path] = []
        self.settings = make_settings(merge(SMALL, SETTINGS))
        self.watch = FolderWatch(os.environ["PREFECT_API_URL"], places.home() / "watched.json", print)

    def put(self, files: Mapping[str, int], client: str) -> None:
        """Put so many files of each kind into the folder of a client."""
        for kind in [kind for kind, count in files.items() for _ in range(count)]:
            self.count += 1
            path = self.incoming / client / f"{kind}-{self.count:04d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            image(kind, self.rng).save(path)

    def arrive(self, day: Day) -> None:
        """Put the files of a day into their folders, and one of each kind into the inbox."""
        for client in CLIENTS:
            self.put(day.files, client)
        self.put(day.flood, "south")
        if day.mended:
            for path in self.broken:
                image("right", self.rng).save(path)
        self.broken = [self.incoming / "west" / f"right-broken{day.broken}{k}.png" for k in range(day.broken)]
        for path in self.broken:
            path.write_bytes(BROKEN)
        for kind in day.files:
            image(kind, self.rng).save(self.inbox / f"{kind}-{self.count:04d}.png")

    def night(self, day: Day) -> dict[str, Any]:
        """Do what the watcher starts: a night where files arrived."""
        self.watch.check()
        if not self.watch.check():
            return {"outcome": "no night"}
        wanted = NightSettings(watch="incoming", promote="ask" if day.ask else "auto", strange=1.0, drift=0.001)
        try:
            return nightly(self.settings, wanted)
        except ShoalError as error:
            return {"outcome": "failed", "why": str(error)}

    def morning(self, day: Day) -> None:
        """Do what a person does, with a command each."""
        if day.approve:
            promote("latest", why="I looked at the sheets")
        if day.rollback:
            rollback(MODEL, why="the new cluster mixes two things")

    def state(self) -> dict[str, Any]:
        """Return the champion, the names of its clusters by kind, and what was assigned."""
        run, version = champion_with_version(self.settings, places.runs())
        assert run is not None
        facts = cluster_facts(run)
        assert facts is not None
        assert facts.names is not None
        return {"champion": version, "run": run.name, "names": facts.names.names}


def live(days: Sequence[Day]) -> None:
    """Go through the days."""
    home = Home()
    for number, day in enumerate(days, 1):
        home.arrive(day)
        line: dict[str, Any] = {"day": number, "title": day.title, "night": home.night(day)}
        line["before morning"] = home.state()["champion"]
        home.morning(day)
        line |= home.state()
        done = assign_new(AssignSettings(model=MODEL, watch="inbox"))
        line["assigned"] = done.samples
        print(json.dumps(line), flush=True)


def main() -> None:
    """Live through the long plan, or the short one."""
    live(long_plan() if sys.argv[1:] == ["long"] else SPECIAL)


if __name__ == "__main__":
    main()
