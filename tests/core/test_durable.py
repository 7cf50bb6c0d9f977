"""A kill or a power cut at any step leaves the old version or the new one, and the lock lets one process write."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.core import durable
from shoal.core.durable import before, leftovers, locked, new_version, put_in_place, restore, write_file

STEPS = ("open", "mkdir", "rename", "replace", "unlink", "rmdir", "fsync")
"""Calls of `os` that change a disk, or wait for one."""
OLD = {"a": "old a", "b": "old b"}
NEW = {"a": "new a", "c": "new c"}
KILLED = 137


def fill(folder: Path, content: dict[str, str]) -> None:
    for name, text in content.items():
        (folder / name).write_text(text)


def content_of(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def watched(act: Callable[[], None], step: Callable[[str, tuple[Any, ...]], None]) -> None:
    """Do something, and be told of every step just before and just after it."""
    kept = {name: getattr(os, name) for name in STEPS}

    def around(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def told(*given: Any, **more: Any) -> Any:
            step(f"before {name}", given)
            result = call(*given, **more)
            step(f"after {name}", given)
            return result

        return told

    for name, call in kept.items():
        setattr(os, name, around(name, call))
    try:
        act()
    finally:
        for name, call in kept.items():
            setattr(os, name, call)


def killed_at(number: int, act: Callable[[], None]) -> bool:
    """Do something in a child that is gone at its step of this number; whether it came so far."""
    child = os.fork()
    if child == 0:
        left = [number]

        def step(name: str, given: tuple[Any, ...]) -> None:
            left[0] -= 1
            if left[0] < 0:
                os._exit(KILLED)

        watched(act, step)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == KILLED


def replace(folder: Path, content: dict[str, str]) -> None:
    with new_version(folder) as scratch:
        fill(scratch, content)


@pytest.mark.long
def test_a_kill_at_any_step_leaves_the_old_folder_or_the_new_one(tmp_path: Path) -> None:
    contents = set()
    for number in range(1000):
        folder = tmp_path / str(number) / "set"
        folder.mkdir(parents=True)
        fill(folder, OLD)
        if not killed_at(number, lambda folder=folder: replace(folder, NEW)):
            break
        restore(folder)
        assert content_of(folder) in (OLD, NEW), f"killed at step {number}"
        contents.add("old" if content_of(folder) == OLD else "new")
        replace(folder, {"again": "works"})
        assert content_of(folder) == {"again": "works"}
    assert number > 20
    assert contents == {"old", "new"}
    assert content_of(folder) == NEW
    assert [path.name for path in folder.parent.iterdir()] == ["set"]


def test_a_kill_at_any_step_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    for number in range(1000):
        path = tmp_path / f"{number}.json"
        path.write_text("old")
        if not killed_at(number, lambda path=path: write_file(path, b"new")):
            break
        assert path.read_text() in ("old", "new")
    assert number > 5
    assert path.read_text() == "new"


def test_the_bytes_of_a_file_are_on_the_disk_before_its_name_and_then_the_name_is(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    found: list[str] = []

    def step(name: str, given: tuple[Any, ...]) -> None:
        if name == "after fsync":
            found.append(Path(os.readlink(f"/proc/self/fd/{given[0]}")).name.partition(".tmp")[0].partition(".json")[0])
        elif name == "after replace":
            found.append("placed")

    watched(lambda: write_file(path, b"new"), step)
    assert found == [".a", "placed", tmp_path.name]


def test_what_is_new_is_on_the_disk_before_it_takes_the_place_and_the_old_one_goes_last(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    fill(folder, OLD)
    found: list[tuple[str, str]] = []

    def step(name: str, given: tuple[Any, ...]) -> None:
        if name == "after fsync":
            found.append(("sync", os.readlink(f"/proc/self/fd/{given[0]}")))
        elif name == "after rename" and folder.exists() and "c" in os.listdir(folder):
            found.append(("placed", str(folder)))
        elif name == "before unlink" or name == "before rmdir":
            found.append(("remove", str(given[0])))

    watched(lambda: replace(folder, NEW), step)
    kinds = [kind for kind, _ in found]
    placed = kinds.index("placed")
    synced = {Path(path).name for kind, path in found[:placed] if kind == "sync"}
    assert {"a", "c"} <= synced
    assert any(name.startswith(".set.") for name in synced)  # the names in the new folder
    assert ("sync", str(tmp_path)) in found[placed:]
    assert "remove" not in kinds[: found.index(("sync", str(tmp_path)), placed)]


def test_a_new_version_that_fails_leaves_the_old_one_and_nothing_beside(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    replace(folder, OLD)

    def fail() -> None:
        with new_version(folder) as scratch:
            fill(scratch, {"a": "half"})
            raise ValueError("half way")

    with pytest.raises(ValueError, match="half way"):
        fail()
    assert content_of(folder) == OLD
    assert os.listdir(tmp_path) == ["set"]


def test_a_folder_that_another_process_puts_there_meanwhile_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, scratch = tmp_path / "set", tmp_path / ".set.1.tmp"
    scratch.mkdir()
    fill(scratch, NEW)
    rename = os.rename
    late = [OLD]

    def overtaken(one: Path, other: Path) -> None:
        if late:
            folder.mkdir()
            fill(folder, late.pop())
        rename(one, other)

    monkeypatch.setattr(os, "rename", overtaken)
    put_in_place(scratch, folder)
    assert content_of(folder) == NEW


def test_leftovers_are_those_of_processes_that_are_gone(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for name in (f".set.{gone.pid}.tmp", f".set.{gone.pid}.7.tmp", f".set.{os.getpid()}.tmp", ".settled.1.tmp"):
        (tmp_path / name).mkdir()
    before(tmp_path / "set").mkdir()
    found = {path.name for path in leftovers(tmp_path / "set")}
    assert found == {f".set.{gone.pid}.tmp", f".set.{gone.pid}.7.tmp", ".set.old"}


def test_a_second_process_waits_for_the_lock_and_says_for_whom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, order = tmp_path / "locks" / "own-set", tmp_path / "order"
    hold = (
        "import sys, time; from pathlib import Path; from shoal.core.durable import locked\n"
        "lock, order = map(Path, sys.argv[1:])\n"
        "with locked(lock, 'data set \\'set\\''):\n"
        "    order.write_text('first')\n"
        "    while not (order.parent / 'go').exists(): time.sleep(0.01)\n"
        "    order.write_text('first done')\n"
    )
    root = Path(durable.__file__).parent.parent
    first = subprocess.Popen([sys.executable, "-c", hold, str(lock), str(order)], cwd=root)
    while not (order.exists() and order.read_text()):
        assert first.poll() is None
        time.sleep(0.01)
    said: list[str] = []

    def say(sentence: str) -> None:
        said.append(sentence)
        (tmp_path / "go").touch()

    monkeypatch.setattr(durable, "_say", say)
    with locked(lock, "data set 'set'"):
        assert order.read_text() == "first done"
    assert said == [f"data set 'set' is being written by another process (pid {first.pid}): waiting for it"]
    assert first.wait() == 0
    with locked(lock, "data set 'set'"):
        pass
    assert len(said) == 1
