"""Sets of the user's own under kill: whatever happens while one is replaced, it is the old one or the new one.

Each try kills the real command (SIGKILL to it and to the DVC that it has started) at a random moment: anywhere in it,
just after it began to write, or just after the new version is in place. Then the set must be whole, byte for byte one
of the two versions, and the same command again must bring the new one.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from shoal.core.errors import DataError
from shoal.data.sets.prepare import own_folder
from shoal.data.sets.prepared import open_prepared
from tests.chaos.tally import Outcome

NAME = "mine"
TRACEBACK = "Traceback (most recent call last)"
HANGS = 120.0
"""Seconds after which a command hangs; it takes one."""
SOON = 0.03
"""Seconds in which a small set is written, synced and put in its place."""


def add(*more: str) -> None:
    """`shoal data add`, as the command line does it."""
    from shoal.cli.main import main

    sys.argv = ["shoal", "data", "add", "photos", "--name", NAME, *more]
    main()  # without `entry`, which would do here what this process is to do at its own end


def take_in_photos() -> None:
    """The part of a night that writes the set."""
    from shoal.engine.settings.merge import merge
    from shoal.engine.settings.run_settings import make_settings
    from shoal.lifecycle.night_settings import NightSettings
    from shoal.lifecycle.taking_in import take_in
    from tests.conftest import SMALL

    settings = {"data": {"name": NAME, "limit": None}, "partition": {"kind": "auto", "clients": None}}
    take_in(
        make_settings(merge(SMALL, settings, {"model": {"clusters": 2}})), NightSettings(watch="photos", strange=1.0)
    )


@dataclass(frozen=True)
class Kind:
    """How a set is replaced.

    Args:
        first: makes the set.
        then: replaces it; it is killed.
        dvc: in a repository of git and DVC.
    """

    first: Callable[[], None]
    then: Callable[[], None]
    dvc: bool = False


KINDS: dict[str, Kind] = {
    "data add --append killed": Kind(add, lambda: add("--append")),
    "data add --append killed, in DVC": Kind(add, lambda: add("--append"), dvc=True),
    "data add --force killed": Kind(add, lambda: add("--force")),
    "a night's new files, killed": Kind(take_in_photos, take_in_photos),
}
SHARES = (40, 15, 15, 30)
"""How many of a hundred tries are of each kind."""


def write_photos(folder: Path, first: int, count: int) -> None:
    """Images of two clients, numbered from `first`."""
    for client in "ab":
        (folder / client).mkdir(parents=True, exist_ok=True)
        for k in range(first, first + count):
            pixels = np.random.default_rng(k).integers(0, 256, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / client / f"{client}{k}.png")


def start(home: Path, act: Callable[[], None]) -> int:
    """Do something in a process of its own, with a home of its own; what it writes goes to its log."""
    child = os.fork()
    if child:
        return child
    code = 0
    try:
        os.setsid()
        log = os.open(home.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        # A test runner may have put files of its own in their place.
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", closefd=False)
        os.environ["SHOAL_HOME"] = str(home)
        os.chdir(home)
        act()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except DataError as error:
        print(f"error {error}", flush=True)
        code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def ended(child: int) -> bool:
    """Whether a process has ended; it stays to be waited for."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def end(child: int) -> int:
    """Wait for a process: its exit code."""
    until = time.monotonic() + HANGS
    while not ended(child) and time.monotonic() < until:
        time.sleep(0.01)
    kill(child)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill(child: int) -> None:
    """SIGKILL to a process and to all that it has started."""
    for signalled in (lambda: os.killpg(child, signal.SIGKILL), lambda: os.kill(child, signal.SIGKILL)):
        try:
            signalled()
        except ProcessLookupError:
            continue


class OwnSets:
    """Where sets are replaced and killed.

    Args:
        folder: an empty folder.
        draw: all that is random.
    """

    def __init__(self, folder: Path, draw: random.Random) -> None:
        self.folder, self.draw, self._made = folder, draw, 0
        self._kinds: dict[str, tuple[Path, str, str, float]] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def attempt(self, event: str) -> Outcome:
        """One try."""
        home, old, new, seconds = self._home(event)
        notes = []
        child = start(home, KINDS[event].then)
        self._wait(child, home, new, seconds)
        kill(child)
        os.waitpid(child, 0)
        between = digest(home)
        if between not in (old, new):
            notes.append(f"after the kill it is neither the old set nor the new one: {between}")
        code = end(start(home, KINDS[event].then))
        if code != 0 and "nothing to append" not in said(home):
            notes.append(f"the same command again ended with {code}: {said(home)[-300:]}")
        if (after := digest(home)) != new:
            notes.append(f"after the same command again it is not the new set: {after}")
        if more := left_beside(home):
            notes.append(f"left beside it: {more}")
        if KINDS[event].dvc and (status := dvc(home, "status", "--quiet", f"data/store/own/{NAME}.dvc")):
            notes.append(f"DVC does not have the new set: {status}; {said(home)[-300:]}")
        shutil.rmtree(home, ignore_errors=True)
        return Outcome(event, "own set", not notes, False, TRACEBACK in said(home), "; ".join(notes))

    def _wait(self, child: int, home: Path, new: str, seconds: float) -> None:
        """Wait for a random moment of a command."""
        moment = self.draw.choice(("any", "writes", "writes", "written"))
        own = own_folder(home / "data" / "store", NAME)
        manifest = own / "manifest.json"

        def reached() -> bool:
            if moment == "writes":
                return any(path.name.startswith(f".{NAME}.") for path in own.parent.iterdir())
            return manifest.exists() and new in manifest.read_text()

        if moment == "any":
            time.sleep(self.draw.random() * seconds)
            return
        until = time.monotonic() + HANGS
        while time.monotonic() < until and not ended(child):
            try:
                if reached():
                    break
            except OSError:  # replaced just now
                break
            time.sleep(0.0005)
        time.sleep(self.draw.random() * (SOON if moment == "writes" else seconds / 2))

    def _home(self, event: str) -> tuple[Path, str, str, float]:
        """A home with the old set, its digest, that of the new one, and how long the command takes."""
        if event not in self._kinds:
            self._kinds[event] = self._prepare(event)
        template, old, new, seconds = self._kinds[event]
        self._made += 1
        home = self.folder / f"try{self._made}"
        shutil.copytree(template, home, symlinks=True)
        return home, old, new, seconds

    def _prepare(self, event: str) -> tuple[Path, str, str, float]:
        kind = KINDS[event]
        home = self.folder / f"template{len(self._kinds)}"
        write_photos(home / "photos", 0, 8)
        if kind.dvc:
            subprocess.run(["git", "init", "-q"], cwd=home, check=True)
            dvc(home, "init", "--quiet")
        if code := end(start(home, kind.first)):
            raise AssertionError(f"{event}: {code}: {said(home)}")
        old = digest(home)
        write_photos(home / "photos", 8, 4)
        straight = home.with_name(f"{home.name}-straight")
        shutil.copytree(home, straight, symlinks=True)
        began = time.monotonic()
        if code := end(start(straight, kind.then)):
            raise AssertionError(f"{event}: {code}: {said(straight)}")
        return home, old, digest(straight), time.monotonic() - began


def said(home: Path) -> str:
    """What the commands in a home wrote."""
    log = home.with_suffix(".log")
    return log.read_text(errors="replace") if log.exists() else ""


def digest(home: Path) -> str:
    """The digest of the set in a home, every byte of which is read; the error where it is not whole."""
    try:
        return open_prepared(own_folder(home / "data" / "store", NAME), verify=True).manifest.digest
    except DataError as error:
        return str(error)


def left_beside(home: Path) -> list[str]:
    """What lies beside the set in a home and belongs to no set."""
    left = {path.name for path in own_folder(home / "data" / "store", NAME).parent.iterdir()}
    return sorted(left - {NAME, f"{NAME}.dvc", f"{NAME}.intake.json", ".gitignore", ".gitkeep"})


def dvc(home: Path, *words: str) -> str:
    """Run DVC; what it says where it fails or, of `status`, where something has changed."""
    done = subprocess.run([sys.executable, "-m", "dvc", *words], cwd=home, capture_output=True, text=True)
    return f"{done.returncode}: {done.stdout} {done.stderr}" if done.returncode else ""


def planned_sets(count: int, seed: int) -> list[str]:
    """The kind of every try, by their shares, in a random order."""
    events = [event for event, share in zip(KINDS, SHARES, strict=True) for _ in range(share)] * (count // 100 + 1)
    random.Random(seed).shuffle(events)
    return events[:count]


def own_sets(folder: Path, events: Sequence[str], seed: int) -> Iterator[Outcome]:
    """Tries on sets of the user's own, of these kinds."""
    import shoal.lifecycle.adding
    import shoal.lifecycle.taking_in  # noqa: F401 (once, and not in each try)

    tries = OwnSets(folder, random.Random(f"{seed} own sets"))
    for event in events:
        yield tries.attempt(event)
