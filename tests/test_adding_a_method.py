"""docs/adding-a-method.md by itself: its example is a method like every other, without an edit to a test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sources import ROOT, copy_source

GENERIC = (
    "tests/methods/test_every_method.py",
    "tests/methods/contract/test_declared.py",
    "tests/methods/test_index.py",
    "tests/test_privacy.py",
    "tests/test_rooms.py",
)


@pytest.mark.slow
def test_the_example_passes_every_test_of_methods(tmp_path: Path) -> None:
    clone = tmp_path / "shoal"
    copy_source(clone)
    page = (ROOT / "docs" / "adding-a-method.md").read_text()
    (code,) = re.findall(r"in `shoal/methods/ssd/fedproxsimclr.py`:\n\n```python\n(.*?)```", page, re.DOTALL)
    assert len(code.splitlines()) < 50
    (clone / "shoal" / "methods" / "ssd" / "fedproxsimclr.py").write_text(code)
    registry = clone / "shoal" / "methods" / "registry.py"
    text = registry.read_text()
    assert text.count("    FedSimCLR,\n") == 1
    text = text.replace("    FedSimCLR,\n", "    FedSimCLR,\n        FedProxSimCLR,\n")
    place = "from shoal.methods.ssd.fedsimclr import FedSimCLR\n"
    assert place in text
    registry.write_text(text.replace(place, f"from shoal.methods.ssd.fedproxsimclr import FedProxSimCLR\n{place}"))
    index = clone / "docs" / "methods.md"
    row = "| FedSimCLR | `fedsimclr` |"
    about = "FedSimCLR whose clients are held near the broadcast weights."
    new = f"| FedSimCLR with a proximal term | `fedproxsimclr` | {about} |"
    text = index.read_text()
    assert text.count(row) == 1
    line = next(line for line in text.splitlines() if line.startswith(row))
    index.write_text(text.replace(line, f"{line}\n{new}"))
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "SHOAL"))}
    subprocess.run(
        [sys.executable, "-m", "tests.messages"], cwd=clone, env=env | {"PYTHONPATH": str(clone)}, check=True
    )
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            *GENERIC,
            "-k",
            "fedproxsimclr or test_rooms or test_index or on_the_page",
        ],
        cwd=clone,
        env=env | {"PYTHONPATH": str(clone)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    process = subprocess.run(
        [sys.executable, "-c", "from shoal.methods.registry import METHODS; print(METHODS['fedproxsimclr'])"],
        cwd=clone,
        env=env | {"PYTHONPATH": str(clone)},
        capture_output=True,
        text=True,
    )
    assert "shoal.methods.ssd.fedproxsimclr.FedProxSimCLR" in process.stdout, process.stderr
    passed = re.search(r"^(\d+) passed", done.stdout, re.MULTILINE)
    assert passed is not None
    assert int(passed[1]) > 20
