"""Without the extra `lead` Shoal trains and judges; a command that needs more says so in a sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.cli.main import LEAD
from tests.sources import ROOT

pytestmark = pytest.mark.long
BLOCK = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {LEAD!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""
RUN = """
import shoal
run = shoal.run(
    method="fedkmeans", data={"name": "digits", "limit": 240}, partition={"kind": "iid", "clients": 3}, progress=False,
    model={"encoder": "pixels", "clusters": 10}, rounds=5, tracking={"mlflow": False, "prefect": "off"},
)
print(run.metrics["acc"] > 0.5)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """That of processes for which the packages of `lead` are not installed."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(BLOCK)
    gone = ("SHOAL", "PREFECT", "MLFLOW", "PYTEST")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(gone)}
    return kept | {"PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{ROOT}"}


def test_the_base_trains_judges_and_reports(environment: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "True\n", done.stderr
    (run,) = (tmp_path / "runs").glob("*_fedkmeans_*")
    assert "verdict" in (run / "report.html").read_text()


def test_a_command_that_needs_more_says_so(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "prefect.yaml").write_bytes((ROOT / "prefect.yaml").read_bytes())
    command = [sys.executable, "-m", "shoal.cli.main", "serve"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "install Shoal with its extra `lead`" in " ".join(done.stderr.split()), done.stderr


def test_a_site_needs_nothing_of_the_lead(environment: dict[str, str], tmp_path: Path) -> None:
    code = "import shoal.engine.sites.cells, shoal.engine.sites.site_service, shoal.engine.sites.own_rules"
    command = [sys.executable, "-P", "-c", f"{code}, shoal.cli.site_commands, shoal.lifecycle.taking_in"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
