"""The wheel: one name is installed, and it runs where no clone is and beside files of ours that are the user's."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.sources import copy_source

NAMES = ("models", "core", "engine", "tasks", "flows", "methods", "review", "search", "cli")
RUN = """
import shoal
run = shoal.run(
    method="fedcc", data={"name": "digits", "limit": 120}, partition={"kind": "iid", "clients": 2}, rounds=1,
    local={"epochs": 1}, tracking={"mlflow": False, "prefect": "off"}, progress=False,
)
print(shoal.Settings.__module__, run.metrics["acc"], run.settings.workers.runner)
"""
ENTRYPOINTS = """
import yaml
from pathlib import Path
from prefect.flows import load_flow_from_entrypoint
from shoal.serving.deployments import read_project
for each in read_project(Path.cwd())["deployments"]:
    print(load_flow_from_entrypoint(each["entrypoint"], use_placeholder_flow=False).name)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    copy_source(place / "clone")
    pip("wheel", "--wheel-dir", str(place), "--no-build-isolation", str(place / "clone"))
    (found,) = place.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin of an environment that holds the wheel, and sees what this one has installed but for our clone."""
    place = tmp_path_factory.mktemp("bare")
    venv.create(place, with_pip=False)
    (site,) = (place / "lib").glob("python*/site-packages")
    (site / "others.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")) + "\n")
    python = str(place / "bin" / "python")
    pip("install", str(wheel), python=python)
    return place / "bin"


def pip(what: str, *words: str, python: str = sys.executable) -> None:
    command = [python, "-m", "pip", what, "--quiet", "--no-deps", "--no-index", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), check=False)
    assert done.returncode == 0, done.stderr


def clean_environment() -> dict[str, str]:
    gone = ("SHOAL", "PYTHONPATH", "PREFECT", "MLFLOW", "PYTEST")
    return {key: value for key, value in os.environ.items() if not key.startswith(gone)} | {"DO_NOT_TRACK": "1"}


def python(bare: Path, folder: Path, *words: str) -> str:
    done = subprocess.run(
        [bare / "python", *words], cwd=folder, env=clean_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_one_name_is_installed_and_nothing_of_the_store(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"shoal"}
    assert not [name for name in names if name.startswith("shoal/data/store")]
    assert {
        "shoal/cli/project/pipeline.yaml",
        "shoal/cli/project/prefect.yaml",
        "shoal/cli/project/params.yaml",
    } <= set(names)
    assert "shoal/review/pages/templates/report.html.j2" in names
    assert "shoal/review/mlflow_log/templates/model_card.md.j2" in names
    assert "shoal/cli/stage.sh" in names
    assert not [name for name in names if "studies" in name or "benchmarks" in name]


@pytest.mark.long
def test_a_run_beside_files_of_the_same_names(bare: Path, tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name}.py of the user was imported')\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "__init__.py").write_text("raise SystemExit('data/ of the user was imported')\n")
    (tmp_path / "go.py").write_text(RUN)
    said = python(bare, tmp_path, "go.py").split()
    assert said[0] == "shoal.engine.settings.run_settings"
    assert said[2] == "local"


@pytest.mark.long
def test_a_project_without_a_clone_has_flows(bare: Path, tmp_path: Path) -> None:
    subprocess.run(
        [bare / "shoal", "init", "trial"], cwd=tmp_path, env=clean_environment(), check=True, capture_output=True
    )
    said = python(bare, tmp_path / "trial", "-c", ENTRYPOINTS).split()
    assert said == ["nightly", "assign", "pipeline", "search", "tell"]


def test_a_tree_without_links_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """As an archive unpacks that keeps no links: each is a file with the path that it led to."""
    copy_source(tmp_path / "tree")
    for link in (tmp_path / "tree" / "shoal").iterdir():
        if link.is_symlink():
            target = str(link.readlink())
            link.unlink()
            link.write_text(target)
    words = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-index", "--no-build-isolation"]
    for command in ([*words, "--wheel-dir", str(tmp_path), "."], [sys.executable, "-c", "import shoal.data.sets"]):
        done = subprocess.run(command, cwd=tmp_path / "tree", env=clean_environment(), capture_output=True, text=True)
        assert done.returncode != 0
        assert "shoal/data must be a link to ../data, and this copy has" in done.stdout + done.stderr
    assert not list(tmp_path.glob("*.whl"))
