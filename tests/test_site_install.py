"""What a site installs: the base of the wheel with the extra `site`, measured beside torch."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.sources import ROOT, copy_source

MOST_MEGABYTES = 950


def empty_torch(folder: Path) -> str:
    """Write a wheel of torch that holds nothing, of the version that is installed here; return that version."""
    number = f"{version('torch').partition('+')[0]}+empty"
    about = f"torch-{number}.dist-info"
    with zipfile.ZipFile(folder / f"torch-{number}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {number}\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    return number


@pytest.mark.slow
def test_a_site_installs_little_beside_torch(tmp_path: Path) -> None:
    torch = empty_torch(tmp_path)
    copy_source(tmp_path / "clone")
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("torch==")]
    (tmp_path / "pins.txt").write_text("\n".join([*pins, f"torch=={torch}"]))
    venv.create(tmp_path / "site", with_pip=False)
    words = [sys.executable, "-m", "pip", "--python", str(tmp_path / "site" / "bin" / "python"), "install", "--quiet"]
    words += ["--find-links", str(tmp_path), "--constraint", str(tmp_path / "pins.txt"), f"{tmp_path / 'clone'}[site]"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (packages,) = (tmp_path / "site" / "lib").glob("python*/site-packages")
    assert not {"prefect", "mlflow", "dvc"} & {path.name for path in packages.iterdir()}
    megabytes = sum(path.stat().st_size for path in packages.rglob("*") if path.is_file()) / 1e6
    print(f"{megabytes:.0f} MB beside torch")
    assert (packages / "nvflare").exists()
    assert megabytes <= MOST_MEGABYTES
