"""A set goes into DVC, and a DVC at work is respected."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from shoal.lifecycle.dvc_tracking import dvc, track


@pytest.fixture
def root(home: Path) -> Path:
    """A repository of git and DVC with a folder of data."""
    subprocess.run(["git", "init", "-q"], cwd=home, check=True)
    assert dvc(home, "init", "--quiet").returncode == 0
    (home / "mine").mkdir()
    (home / "mine" / "x.npy").write_bytes(b"1234")
    return home


@pytest.mark.long
def test_a_set_is_tracked(root: Path) -> None:
    assert track(root / "mine") == (root / "mine.dvc", "")
    assert "nfiles: 1" in (root / "mine.dvc").read_text()


def test_dvc_at_work_on_a_set_is_respected(root: Path) -> None:
    lock = root / ".dvc" / "tmp" / "rwlock"
    lock.write_text(json.dumps({"write": {str(root / "mine"): {"pid": os.getpid(), "cmd": "dvc add mine"}}}))
    before = lock.read_text()
    pointer, refused = track(root / "mine")
    assert pointer is None
    assert "is busy, it is being blocked by" in " ".join(refused.split())
    assert lock.read_text() == before
