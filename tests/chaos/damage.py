"""Damaged files of finished runs and own sets: every reader gives the answer of the undamaged run, or refuses.

A try damages one file, has one reader read, and puts everything back. Right is an exit code of 0 with the same answer,
or another exit code with one sentence. A reader runs in a process of its own, forked from one that imported everything.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import shutil
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing import forkserver
from pathlib import Path

from shoal.core.errors import ShoalError
from tests.chaos.damage_readers import READERS, Subject, prepare

SAME, REFUSED = "same answer", "refused"
DIFFERENT, TRACEBACK, UNCLEAR = "SILENTLY DIFFERENT", "TRACEBACK", "REFUSED IN MORE THAN A SENTENCE"
COLUMNS = ("reader", "tries", SAME, REFUSED, "silently different", "tracebacks", "unclear")
NO_PART = ("lock", "claim")
"""Files that say who works on a run, and nothing of it."""
PRELOADED = (
    "shoal.cli.main",
    "shoal.cli.predict",
    "shoal.cli.explain",
    "shoal.cli.model",
    "shoal.cli.compare",
    "shoal.cli.stages",
    "shoal.cli.data",
    "shoal.engine.workers.worker",
    "shoal.review.pages.cluster_sheets",
    "shoal.review.served.drift",
    "shoal.review.served.judging",
    "shoal.review.served.promotion",
    "shoal.review.pages.report",
    "shoal.review.mlflow_log.pyfunc",
    "shoal.review.mlflow_log.tracking",
    "shoal.sweeps.search.runner",
)
"""What readers import, once for all of them."""
LONGEST = 1200
"""Characters of a sentence with its paths, at most."""


@dataclass(frozen=True)
class Damaged:
    """What became of one try."""

    reader: str
    damage: str
    file: str
    outcome: str
    said: str


# --- damages ----------------------------------------------------------------------------------------------------------


def flip(path: Path, draw: random.Random, files: list[Path]) -> None:
    """Flip one bit."""
    raw = bytearray(path.read_bytes())
    if raw:
        raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
        path.write_bytes(raw)


def truncate(path: Path, draw: random.Random, files: list[Path]) -> None:
    """Cut the end off."""
    raw = path.read_bytes()
    path.write_bytes(raw[: draw.randrange(len(raw))] if raw else raw)


def delete(path: Path, draw: random.Random, files: list[Path]) -> None:
    """Remove it."""
    path.unlink()


def empty(path: Path, draw: random.Random, files: list[Path]) -> None:
    """Leave nothing in it."""
    path.write_bytes(b"")


def swap(path: Path, draw: random.Random, files: list[Path]) -> None:
    """Put another file of its kind in its place: of another round, client or run."""
    others = [other for other in files if other.suffix == path.suffix and other.read_bytes() != path.read_bytes()]
    alike = [other for other in others if other.name == path.name] or others
    if alike:
        shutil.copyfile(draw.choice(alike), path)
    else:
        flip(path, draw, files)


DAMAGES: dict[str, Callable[[Path, random.Random, list[Path]], None]] = {
    "flipped": flip,
    "truncated": truncate,
    "deleted": delete,
    "emptied": empty,
    "swapped": swap,
}


# --- tries ------------------------------------------------------------------------------------------------------------


def forked(work: Callable[[], None], home: Path) -> tuple[int, str, str]:
    """Do something in a process of its own.

    Returns:
        Its exit code, and what it wrote on standard output and on standard error.
    """
    outputs = [home.parent / "out.txt", home.parent / "err.txt"]
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        known = forkserver._forkserver  # type: ignore[attr-defined]
        known._forkserver_pid = None  # this process is no parent of that one, and starts another
        try:
            for place, path in enumerate(outputs, 1):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), place)
            # A test runner may have put files of its own in their place.
            sys.stdout = os.fdopen(1, "w", closefd=False)
            sys.stderr = os.fdopen(2, "w", closefd=False)
            os.chdir(home)
            work()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except ShoalError as error:
            print("error", error, file=sys.stderr)
            code = 1
        except BaseException:
            traceback.print_exc()
            code = 70
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    said, wrong = (path.read_text(errors="replace") if path.exists() else "" for path in outputs)
    return code, said, wrong


class Ground:
    """Finished runs to damage, put back after every try.

    Args:
        folder: an empty folder, which becomes SHOAL_HOME's parent.
    """

    def __init__(self, folder: Path) -> None:
        self.home, self.whole = folder / "home", folder / "whole"
        self.home.mkdir()
        about = folder / "subject.json"

        def make() -> None:
            from shoal.engine.store.run_folder import RunFolder
            from shoal.review.results.clusters import read_clusters

            subject = prepare(self.home)
            about.write_text(json.dumps(subject.to_json()))
            table = read_clusters(RunFolder(subject.run), ["cluster"])
            assert table is not None
            (self.home / "largest.json").write_text(json.dumps(int(table["cluster"].mode()[0])))

        code, said, wrong = forked(make, self.home)
        if code:
            raise RuntimeError(f"the runs could not be made: {said[-500:]}{wrong[-2000:]}")
        self.subject = Subject.from_json(json.loads(about.read_text()))
        shutil.copytree(self.home, self.whole, symlinks=True)
        for name in PRELOADED:
            importlib.import_module(name)
        self.answers: dict[str, str] = {}

    def restore(self) -> None:
        """Put everything back."""
        shutil.rmtree(self.home)
        shutil.copytree(self.whole, self.home, symlinks=True)

    def read(self, reader: str) -> tuple[int, str, str]:
        """What a reader says of the files as they are."""
        return forked(lambda: READERS[reader][1](self.subject), self.home)

    def answer(self, reader: str) -> str:
        """What a reader says of the undamaged files."""
        if reader not in self.answers:
            code, said, wrong = self.read(reader)
            self.restore()
            if code:
                raise RuntimeError(f"{reader} fails without damage: {said[-300:]}{wrong[-2000:]}")
            self.answers[reader] = said
        return self.answers[reader]

    def files(self, reader: str) -> list[Path]:
        """The files that are damaged under a reader."""
        root = getattr(self.subject, READERS[reader][0])
        return [path for path in sorted(root.rglob("*")) if path.is_file() and path.name not in NO_PART]

    def attempt(self, reader: str, damage: str, draw: random.Random) -> Damaged:
        """One try."""
        before = self.answer(reader)
        files = self.files(reader)
        path = draw.choice(files)
        other = [each for each in self.subject.other.rglob("*") if each.is_file()]
        DAMAGES[damage](path, draw, [*files, *other])
        code, said, wrong = self.read(reader)
        self.restore()
        root = getattr(self.subject, READERS[reader][0])
        outcome = judge(code, said, wrong, before)
        return Damaged(reader, damage, str(path.relative_to(root)), outcome, (said[-300:] + wrong)[-1500:])


def judge(code: int, said: str, wrong: str, before: str) -> str:
    """What became of a try, by what the reader wrote."""
    if "Traceback (most recent call last)" in said + wrong:
        return TRACEBACK
    if code == 0:
        return SAME if said == before else DIFFERENT
    sentence = " ".join(wrong.split())
    return REFUSED if sentence.startswith("error ") and len(sentence) < LONGEST else UNCLEAR


def table(found: list[Damaged]) -> str:
    """The table in Markdown: a row a reader, and one of all."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|" + "---:|" * (len(COLUMNS) - 1)]
    for reader in [*(name for name in READERS if any(each.reader == name for each in found)), "all"]:
        own = [each for each in found if reader in (each.reader, "all")]
        counts = Counter(each.outcome for each in own)
        numbers = [counts[outcome] for outcome in (SAME, REFUSED, DIFFERENT, TRACEBACK, UNCLEAR)]
        lines.append("| " + " | ".join(map(str, (reader, len(own), *numbers))) + " |")
    return "\n".join(lines) + "\n"


def tries(ground: Ground, count: int, seed: int, readers: list[str], minutes: float = 1e9) -> list[Damaged]:
    """Some tries: readers and damages in turn, files at random."""
    found: list[Damaged] = []
    began = time.monotonic()
    for number in range(count):
        if time.monotonic() - began > minutes * 60:
            break
        reader = readers[number % len(readers)]
        damage = list(DAMAGES)[number // len(readers) % len(DAMAGES)]
        one = ground.attempt(reader, damage, random.Random(f"{seed} {number}"))
        found.append(one)
        if one.outcome not in (SAME, REFUSED):
            print(f"{number}: {one.reader}, {one.file} {one.damage}: {one.outcome}\n{one.said}", flush=True)
    return found


def write(found: list[Damaged], out: Path) -> None:
    """damage.md and damage.json in a folder."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "damage.md").write_text(table(found))
    (out / "damage.json").write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n")
