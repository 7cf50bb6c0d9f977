"""docs/adding-a-method.md by itself: its example is a method of a package of its own, without an edit to Shoal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sources import ROOT

GENERIC = ("tests/methods/test_every_method.py", "tests/methods/contract/test_declared.py")
RUN = """
import shoal
from pathlib import Path
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.registry import ADDED, BUILT_IN, METHODS
print(METHODS["fedproxsimclr"].__module__, "fedproxsimclr" in BUILT_IN)
print(ADDED.broken)
run = shoal.run(
    method={"name": "fedproxsimclr", "mu": 0.5}, data={"name": "digits", "limit": 60}, model={"encoder": "tiny-conv"},
    partition={"kind": "iid", "clients": 2}, rounds=1, local={"epochs": 1, "batch": 16},
    tracking={"mlflow": False, "prefect": "off"}, progress=False,
)
print(RunFolder.find("latest").lineage().versions["fedprox-method"])
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The folder of the page's example as pip installs it, and of another whose module cannot be imported."""
    page = (ROOT / "docs" / "adding-a-method.md").read_text()
    (code,) = re.findall(r"in `fedprox_method.py`, in a folder of your own:\n\n```python\n(.*?)```", page, re.DOTALL)
    assert len(code.splitlines()) < 50
    (entry,) = re.findall(r"^fedproxsimclr = \"(.*)\"$", page, re.MULTILINE)
    folder = tmp_path / "site"
    for name, line in (("fedprox_method", f"fedproxsimclr = {entry}"), ("torn", "torn = torn:Torn")):
        info = folder / f"{name}-0.1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 0.1.0\n")
        (info / "entry_points.txt").write_text(f"[shoal.methods]\n{line}\n")
    (folder / "fedprox_method.py").write_text(code)
    (folder / "torn.py").write_text("import a_module_that_nobody_has\n")
    return folder


def python(package: Path | None, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "SHOAL"))}
    path = os.pathsep.join(map(str, filter(None, (package, ROOT))))
    command = [sys.executable, *words]
    return subprocess.run(
        command, cwd=folder, env=env | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )


@pytest.mark.long
def test_the_example_runs_and_a_torn_package_breaks_nothing_else(package: Path, tmp_path: Path) -> None:
    done = python(package, tmp_path, "-c", RUN)
    assert done.returncode == 0, done.stderr
    first, broken, version = done.stdout.splitlines()
    assert first == "fedprox_method False"
    assert "torn" in broken
    assert "a_module_that_nobody_has" in broken
    assert version == "0.1.0"
    (run,) = (tmp_path / "runs").glob("*_fedproxsimclr_*")
    gone = python(None, tmp_path, "-m", "shoal.cli.main", "run", "--resume", run.name)
    assert gone.returncode == 1
    assert "'fedproxsimclr' is not known" in gone.stderr
    assert "a method of another package needs that package here" in " ".join(gone.stderr.split())


@pytest.mark.slow
def test_the_example_passes_every_test_of_methods(package: Path) -> None:
    chosen = ("-m", "not slow", "-k", "fedproxsimclr")
    done = python(package, ROOT, "-m", "pytest", "-p", "no:cacheprovider", *GENERIC, *chosen)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    passed = re.search(r"^(\d+) passed", done.stdout, re.MULTILINE)
    assert passed is not None
    assert int(passed[1]) > 10
