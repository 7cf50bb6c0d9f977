"""Which build of torch `make setup` installs: asked of the real pip, in folders of wheels instead of an index."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
from packaging.specifiers import SpecifierSet

from tests.sources import ROOT

VERSIONS = {"torch": "9.1.0", "torchvision": "9.2.0"}


@pytest.fixture(scope="module")
def install() -> ModuleType:
    spec = importlib.util.spec_from_file_location("install", ROOT / ".ci" / "install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wheel(folder: Path, name: str, version: str) -> None:
    """A package with nothing in it."""
    about = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{about}/RECORD", "")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All that pip knows: a folder with the ordinary builds."""
    for name, version in VERSIONS.items():
        wheel(tmp_path, name, version)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return tmp_path


@pytest.mark.long
def test_the_pair_is_taken_where_there_is_no_gpu(install: ModuleType, index: Path) -> None:
    for name, version in VERSIONS.items():
        wheel(index, name, f"{version}+cpu")
    for wanted in ("auto", "cpu"):
        plan = install.choose(wanted, False, VERSIONS)
        assert plan.first == ("torch==9.1.0+cpu", "torchvision==9.2.0+cpu")
    assert install.choose("cpu", True, VERSIONS).first == plan.first
    assert not install.choose("auto", True, VERSIONS).first
    assert not install.choose("cuda", False, VERSIONS).first


@pytest.mark.long
def test_half_a_pair_is_never_taken(install: ModuleType, index: Path, tmp_path: Path) -> None:
    wheel(index, "torch", "9.1.0+cpu")
    plan = install.choose("auto", False, VERSIONS)
    assert not plan.first
    assert "brings some 5 GB" in plan.why
    assert "PIP_EXTRA_INDEX_URL" in plan.why
    with pytest.raises(SystemExit, match=r"offers torchvision==9\.2\.0\+cpu: name an index"):
        install.choose("cpu", False, VERSIONS)
    # What pip then chooses by itself: left alone it would take the half.
    chosen = {}
    for name, lines in {"alone": ["torch==9.1.0"], "held": ["torch==9.1.0", *plan.pinned]}.items():
        (tmp_path / f"{name}.txt").write_text("\n".join(lines))
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "torch"]
        done = subprocess.run([*command, "-c", tmp_path / f"{name}.txt"], capture_output=True, text=True, check=True)
        chosen[name] = done.stdout.splitlines()[-1].split()[-1]
    assert chosen == {"alone": "torch-9.1.0+cpu", "held": "torch-9.1.0"}


def test_without_any_the_reason_for_the_gigabytes_is_said(install: ModuleType, index: Path) -> None:
    plan = install.choose("auto", False, VERSIONS)
    assert not plan.first
    assert not plan.pinned
    assert "no GPU is seen here" in plan.why


def test_a_gpu_is_seen_by_its_driver(install: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not install.gpu_seen(lambda path: False)
    assert install.gpu_seen(lambda path: path == "/dev/nvidiactl")
    (tmp_path / "nvidia-smi").write_text("")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert install.gpu_seen(lambda path: False)


def test_the_pins_are_those_of_the_constraints(install: ModuleType) -> None:
    found = install.pins(ROOT / "constraints.txt")
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert set(found) == {"torch", "torchvision"}
    assert all(f"{name}=={version}" in lines for name, version in found.items())


def test_every_pin_can_be_installed_on_the_first_python_of_the_project() -> None:
    """Python 3.11.2 comes with Debian 12: a package that asks for 3.11.5 had `make setup` fail there."""
    text = (ROOT / "constraints.txt").read_text()
    pinned = {name.lower().replace("_", "-") for name in re.findall(r"^([\w.-]+)==", text, re.MULTILINE)}
    required_version = re.search(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert required_version is not None
    count = 0
    refuse = {}
    for package in metadata.distributions():
        name, wanted = package.metadata["Name"].lower().replace("_", "-"), package.metadata.get("Requires-Python")
        if name in pinned and wanted:
            count += 1
            if f"{required_version[1]}.0" not in SpecifierSet(wanted):
                refuse[name] = wanted
    assert count > 100
    assert not refuse
