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
EMPTY = {
    "METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: {}\n",
    "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "RECORD": "",
}
"""The files of a wheel of torch that installs nothing."""


@pytest.mark.slow
def test_a_site_installs_little_beside_torch(tmp_path: Path) -> None:
    copy_source(tmp_path / "clone")
    number = f"{version('torch').partition('+')[0]}+empty"
    with zipfile.ZipFile(tmp_path / f"torch-{number}-py3-none-any.whl", "w") as wheel:
        for name, text in EMPTY.items():
            wheel.writestr(f"torch-{number}.dist-info/{name}", text.format(number))
    pins = (ROOT / "constraints.txt").read_text().replace("torch==", f"torch=={number} #")
    (tmp_path / "pins.txt").write_text(pins)
    venv.create(tmp_path / "site", with_pip=False)
    words = f"-m pip --python {tmp_path}/site/bin/python install --quiet --find-links {tmp_path} -c {tmp_path}/pins.txt"
    subprocess.run([sys.executable, *words.split(), f"{tmp_path}/clone[site]"], check=True)
    (packages,) = (tmp_path / "site" / "lib").glob("python*/site-packages")
    assert not {"prefect", "mlflow", "dvc"} & {path.name for path in packages.iterdir()}
    megabytes = sum(path.stat().st_size for path in packages.rglob("*") if path.is_file()) / 1e6
    print(f"{megabytes:.0f} MB beside torch")
    assert (packages / "nvflare").exists()
    assert megabytes <= MOST_MEGABYTES
