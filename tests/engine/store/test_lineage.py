from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from shoal.engine.store.lineage import dvc_hash, versions

DVC = str(Path(sys.executable).with_name("dvc"))


@pytest.mark.long
def test_hashes_are_dvcs_own(home: Path) -> None:
    folder = home / "things"
    (folder / "b").mkdir(parents=True)
    for name, text in (("z.txt", "last"), ("b/a.txt", "inner"), ("b.txt", "beside"), ("a.npy", "first")):
        (folder / name).write_text(text)
    (home / "one.bin").write_bytes(bytes(range(256)) * 9)
    subprocess.run([DVC, "init", "--no-scm", "-q"], cwd=home, check=True)
    subprocess.run([DVC, "add", "-q", "things", "one.bin"], cwd=home, check=True)
    for name in ("things", "one.bin"):
        recorded = yaml.safe_load((home / f"{name}.dvc").read_text())["outs"][0]["md5"]
        assert dvc_hash(home / name) == recorded


def test_versions_name_the_packages() -> None:
    assert versions()["torch"] != "absent"
