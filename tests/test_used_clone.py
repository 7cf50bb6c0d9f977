"""A clone that was used passes its tests and checks: what runs leave in it is not taken for the project's source."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sources import copy_source

# Where a demo, `dvc repro`, `shoal run` and `shoal serve` leave files, and users their own.
LEFT = (
    "mlflow/artifacts/1/models/m-1/artifacts/code/tasks",
    "mlflow/artifacts/1/models/m-1/artifacts/code/data",
    "runs/20260131-120000_fedcc_digits_1a2b3c4d/work",
    "results/federation/code",
    "data/store/own/mine",
    "data/store/raw",
    ".prefect/storage",
)
# As a module it breaks the order of rooms and every rule of style, and as a test it fails.
ODD = (
    "import os,flows\nfrom typing import *\nimport prefect, mlflow\ndef test_it( ) : raise RuntimeError\nx : int='a'\n"
)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source with what a user's work leaves in it."""
    folder = tmp_path_factory.mktemp("user") / "shoal"
    copy_source(folder)
    for place in LEFT:
        (folder / place).mkdir(parents=True)
        for name in ("odd.py", "test_odd.py", "__init__.py"):
            (folder / place / name).write_text(ODD)
    return folder


def in_clone(clone: Path, *command: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "SHOAL", "MYPY"))}
    done = subprocess.run([sys.executable, "-m", *command], cwd=clone, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done


@pytest.mark.slow
def test_no_test_takes_them_for_source(clone: Path) -> None:
    in_clone(
        clone, "pytest", "-p", "no:cacheprovider", "tests/test_rooms.py", "tests/methods/test_methods_stand_alone.py"
    )


@pytest.mark.long
def test_no_left_file_is_collected(clone: Path) -> None:
    """Named by no file, as `make test` has it; our own tests, but for those at the top, are not imported for it."""
    own = [f"--ignore=tests/{path.name}" for path in (clone / "tests").iterdir() if path.is_dir()]
    done = in_clone(clone, "pytest", "-p", "no:cacheprovider", "--collect-only", "-k", "test_it or test_rooms", *own)
    assert "test_rooms" in done.stdout
    assert "test_odd" not in done.stdout


@pytest.mark.parametrize("check", [("check",), ("format", "--check")], ids=" ".join)
def test_no_check_of_style_reads_them(clone: Path, check: tuple[str, ...]) -> None:
    ruff = Path(sys.executable).with_name("ruff")
    done = subprocess.run([ruff, *check, "--no-cache", "."], cwd=clone, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]


def test_no_check_of_types_reads_them(clone: Path) -> None:
    """The build alone: what it would read, without the minute that checking all of it takes."""
    code = (
        "import tomllib; from mypy.fscache import FileSystemCache; from mypy.modulefinder import *; "
        "from mypy.options import Options; o = Options(); o.explicit_package_bases = True; "
        "s = tomllib.load(open('pyproject.toml', 'rb'))['tool']['mypy']; o.exclude = s.get('exclude', []); "
        "f = FindModuleCache(SearchPaths(('.',), (), (), ()), FileSystemCache(), o); "
        "print(*(m.module for p in s['packages'] for m in f.find_modules_recursive(p)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=clone, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    modules = done.stdout.split()
    assert "shoal.data.partition.deal" in modules
    assert not [name for name in modules if "odd" in name or name.startswith("shoal.data.store")]
