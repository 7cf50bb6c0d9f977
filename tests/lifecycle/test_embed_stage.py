"""An embedding as a stage of dvc.yaml, as docs/encoders.md adds it, in a project that `shoal init` makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from shoal.cli.init import make_project
from shoal.data.sets.prepare import prepare
from shoal.engine.settings import places
from shoal.engine.store.embedded import is_stale
from shoal.lifecycle.adding import add_own
from tests.planted_images import write_clients
from tests.scripted_encoder import Patches, write_scripted

DVC = [sys.executable, "-m", "dvc"]


@pytest.mark.slow
def test_dvc_repro_embeds_again_where_images_have_come(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = home / "project"
    make_project(project)
    monkeypatch.setenv("SHOAL_HOME", str(project))
    monkeypatch.chdir(project)
    write_scripted(project / "encoders" / "parts.pt", kind=Patches)
    write_clients(home / "pictures", each=1)
    add_own(home / "pictures", "mine")
    command = "sh stage.sh embed mine --encoder file:parts.pt --name made"
    paths = ["-d", "data/store/own/mine", "-o", "data/store/own/made"]
    subprocess.run([*DVC, "stage", "add", "-q", "-n", "embed-made", *paths, command], cwd=project, check=True)
    assert "are vectors in 'made'" in repro(project)
    stages = yaml.safe_load((project / "dvc.yaml").read_text())["stages"]
    assert {"prepare", "report"} <= stages.keys(), "the other stages are still there"
    assert not repro(project), "nothing is left to do"
    write_clients(home / "pictures", ("south",), each=1)
    add_own(home / "pictures", "mine", append=True)
    assert is_stale(prepare("made", places.store()))
    assert "are vectors in 'made'" in repro(project)
    made = prepare("made", places.store())
    assert not is_stale(made)
    assert made.manifest.extra["clients"][-1] == "south"


def repro(project: Path) -> str:
    """Run the stage; return what it printed, empty where it was up to date."""
    done = subprocess.run([*DVC, "repro", "embed-made"], cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout if "Running stage 'embed-made'" in done.stdout else ""
