"""The DVC pipeline on a real repository: a second repro does nothing, a changed setting re-runs what depends on it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tasks.settings import make_settings
from tests.conftest import SMALL

ROOT = Path(__file__).parent.parent.parent
BIN = Path(sys.executable).parent


@pytest.fixture
def repository(home: Path) -> Path:
    for name in ("data", "methods", "models", "tasks"):
        shutil.copytree(ROOT / name, home / name, ignore=shutil.ignore_patterns("store", "__pycache__"))
    shutil.copy(ROOT / "dvc.yaml", home)
    settings = make_settings({**SMALL, "rounds": 1}).plain()
    (home / "params.yaml").write_text(yaml.safe_dump(settings))
    subprocess.run(["git", "init", "-q"], cwd=home, check=True)
    subprocess.run([BIN / "dvc", "init", "-q"], cwd=home, check=True)
    return home


def repro(home: Path) -> str:
    env = {**os.environ, "SHOAL_HOME": str(home), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([BIN / "dvc", "repro"], cwd=home, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_repro_runs_once_and_follows_changes(repository: Path) -> None:
    first = repro(repository)
    assert "Running stage 'federate'" in first
    result = json.loads((repository / "results" / "federation" / "result.json").read_text())
    metrics = json.loads((repository / "results" / "metrics.json").read_text())
    assert metrics["acc"] == pytest.approx(result["metrics"]["acc"])
    lineage = json.loads((repository / "results" / "federation" / "lineage.json").read_text())
    outs = {o["path"]: o["md5"] for s in yaml.safe_load((repository / "dvc.lock").read_text())["stages"].values()
            for o in s.get("outs", [])}  # fmt: skip
    assert outs["data/store/prepared/digits"] == lineage["data"]["dvc"]
    assert outs["data/store/partitions/pipeline"] == lineage["partition"]["dvc"]
    assert "Running stage" not in repro(repository)
    params = yaml.safe_load((repository / "params.yaml").read_text())
    (repository / "params.yaml").write_text(yaml.safe_dump({**params, "rounds": 2}))
    third = repro(repository)
    assert "Running stage 'federate'" in third
    assert "Running stage 'partition'" not in third
    assert "Running stage 'prepare'" not in third
