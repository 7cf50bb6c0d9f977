"""What a killed DVC leaves does not stop the next one."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.lifecycle.dvc_command import RWLOCK, dvc, forget_ended
from shoal.lifecycle.dvc_tracking import DvcError, track

LATER = 1e7
"""Seconds: a list that was written so long ago is older than this process."""


@pytest.fixture
def root(home: Path) -> Path:
    """A repository of git and DVC with a folder of data."""
    subprocess.run(["git", "init", "-q"], cwd=home, check=True)
    assert dvc(home, "init", "--quiet").returncode == 0
    (home / "mine").mkdir()
    (home / "mine" / "x.npy").write_bytes(b"1234")
    return home


@pytest.fixture
def zombie() -> Iterator[int]:
    """A process that has ended, and that nobody has waited for yet."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    yield child
    os.waitpid(child, 0)


def write_list(root: Path, pid: int, *, readers: bool = False) -> Path:
    """DVC's list with one process that writes, or reads, the folder of data."""
    path = root / RWLOCK
    entry = {"pid": pid, "cmd": "dvc add mine"}
    mode, entries = ("read", [entry]) if readers else ("write", entry)
    path.write_text(json.dumps({mode: {str(root / "mine"): entries}}))
    return path


@pytest.mark.long
def test_a_killed_dvc_that_nobody_waited_for_blocks_nothing(root: Path, zombie: int) -> None:
    write_list(root, zombie)
    pointer = track(root / "mine")
    assert pointer == root / "mine.dvc"
    assert "nfiles: 1" in pointer.read_text()


def test_a_process_that_has_ended_is_forgotten_and_one_that_works_is_not(root: Path, zombie: int) -> None:
    for readers in (False, True):
        path = write_list(root, zombie, readers=readers)
        assert forget_ended(root)
        assert json.loads(path.read_text()) == {"read": {}, "write": {}}
        before = write_list(root, os.getpid(), readers=readers).read_text()
        assert not forget_ended(root)
        assert path.read_text() == before
        # Written before this process began: another one had its number then.
        os.utime(path, (time.time() - LATER,) * 2)
        assert forget_ended(root)


def test_dvc_at_work_on_a_set_is_respected(root: Path) -> None:
    before = write_list(root, os.getpid()).read_text()
    with pytest.raises(DvcError, match="is busy, it is being blocked by"):
        track(root / "mine")
    assert (root / RWLOCK).read_text() == before


@pytest.mark.long
@pytest.mark.parametrize("text", ["", '{"write": {"/x', "[]", '{"write": {"/x": 3}}'])
def test_a_list_that_a_kill_cut_short_is_begun_again(root: Path, text: str) -> None:
    (root / RWLOCK).write_text(text)
    assert forget_ended(root)
    assert json.loads((root / RWLOCK).read_text()) == {}


def test_where_there_is_no_list_nothing_is_forgotten(root: Path) -> None:
    (root / RWLOCK).unlink(missing_ok=True)
    assert not forget_ended(root)
