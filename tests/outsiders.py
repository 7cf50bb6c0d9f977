"""What other pages in the user's browser, and other users of the machine, get of a real `shoal serve` and of its user.

    python -m tests.outsiders [--out results/hostile]

A part of `make hostile`. It ends with 1 where anything got through. Two users need root, who can act as both.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.serving import attack
from tests.serving.served import Served, eventually

SECRET = (
    ".prefect/login",
    ".prefect/prefect.db",
    "runs/.serve/links.txt",
    "runs/.serve/prefect.log",
    "runs/.serve/mlflow.log",
    "runs/.serve/worker.log",
)
"""Files of a served home that nobody but its user reads."""
NOBODY = 65534
"""Another user's number."""
IS_ROOT = os.geteuid() == 0
"""Who may give files to another user, and start processes of one."""


@dataclass(frozen=True)
class Tried:
    """What was tried of a kind.

    Args:
        who: tries it.
        what: is tried.
        tries: how often.
        through: what got through, a sentence each.
    """

    who: str
    what: str
    tries: int
    through: list[str]


def told(who: str, what: str, found: list[str | None]) -> Tried:
    """Count tries, of which each is what got through, or None."""
    return Tried(who, what, len(found), attack.got_through(found))


# --- pages ------------------------------------------------------------------------------------------------------------


def of_pages(served: Served, folder: Path) -> Iterator[Tried]:
    """What a page of another origin, and who has no password, get of the servers."""
    page = "another page, or nobody's password"
    before = attack.state(served)
    yield told(page, "requests to Prefect", attack.on_prefect(served))
    yield told(page, "requests to MLflow", attack.on_mlflow(served))
    yield told(page, "WebSockets", attack.by_websocket(served))
    after = attack.state(served)
    changed = [None if after[name] == before[name] else f"{name} are {after[name]}" for name in before]
    yield told(page, "what an attack would change", changed)
    attack.start_a_program(served, folder)
    yield told("who has the password", "programs and files of the flow `tell`", [*map(str, folder.iterdir())] or [None])


# --- another user -----------------------------------------------------------------------------------------------------


def as_other(act: Callable[[], Any]) -> Any:
    """Do something as another user, in a process of its own; what it returns, as JSON has it."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        with os.fdopen(write, "w") as answer:
            json.dump(act(), answer)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return json.loads(text)


def refused(act: Callable[[], Any]) -> bool:
    """Whether the system refuses something to this user."""
    try:
        act()
    except PermissionError:
        return True
    return False


def of_secrets(served: Served) -> Iterator[Tried]:
    """Which files of a served home another user can read or write, whose folders above are open to everybody."""
    found: list[str | None] = []
    for name in SECRET:
        path = served.folder / name
        assert path.is_file(), f"{path} is not there"
        readable = not as_other(lambda path=path: refused(path.read_bytes))
        mode = path.stat().st_mode & 0o777
        found.append(f"{name} is read" if readable else f"{name} has mode {mode:o}" if mode & 0o077 else None)
    yield told("another user", "secrets of a served home", found)


# --- all --------------------------------------------------------------------------------------------------------------


def all_tries(folder: Path) -> Iterator[Tried]:
    """Everything, in an empty folder."""
    folder.chmod(0o755)
    (folder / "told").mkdir()
    served = Served(folder)
    try:
        eventually(served.started, "shoal serve")
        yield from of_pages(served, folder / "told")
        if IS_ROOT:
            yield from of_secrets(served)
        else:
            print("two users are not tried: only root can act as both", file=sys.stderr)
    finally:
        served.stop()


def table(found: list[Tried]) -> str:
    """What was tried, in Markdown, and what got through by name."""
    lines = ["| who | what | tries | got through |", "|---|---|---:|---:|"]
    lines += [f"| {each.who} | {each.what} | {each.tries} | {len(each.through)} |" for each in found]
    return "\n".join([*lines, "", *(f"- {each.who}: {line}" for each in found for line in each.through)]) + "\n"


def main() -> None:
    """Try everything; exit code 1 where anything got through."""
    parser = argparse.ArgumentParser(prog="python -m tests.outsiders", description=__doc__)
    parser.add_argument("--out", type=Path, help="folder of the table")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="shoal-outsiders-"))
    try:
        found = list(all_tries(folder))
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
    print(table(found))
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "outsiders.md").write_text(table(found))
    sys.exit(any(each.through for each in found))


if __name__ == "__main__":
    main()
