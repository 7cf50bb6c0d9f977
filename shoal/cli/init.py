"""`shoal init`: a project folder with settings, a DVC pipeline and Prefect deployments, without a clone of Shoal."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from importlib import metadata, resources
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.console import out
from shoal.core.errors import ShoalError, shown

FILES = {
    "params.yaml": "params.yaml",
    "pipeline.yaml": "dvc.yaml",
    "prefect.yaml": "prefect.yaml",
    "stage.sh": "stage.sh",
    "gitignore": ".gitignore",
    "dvcignore": ".dvcignore",
}
"""The files of a project, by their names in the package, where DVC shall find no pipeline."""
REQUIREMENTS = "requirements.txt"
QUIET_DVC = "    analytics = false\n    check_update = false\n"


class ProjectError(ShoalError):
    """A project cannot be made in a folder."""


def init(
    folder: Annotated[Path, typer.Argument(help="the project's folder; it is made where it is not there")],
) -> None:
    """Make a project: settings, a DVC pipeline and Prefect deployments in a folder of your own."""
    make_project(folder)
    out.print(f"a project in {folder}: go there, and", highlight=False, soft_wrap=True)
    out.print("    shoal run params.yaml    # one run", highlight=False)
    out.print("    dvc repro                # the same as a pipeline, from the data to the report", highlight=False)
    out.print("    shoal serve              # Prefect's deployments and MLflow's pages, until Ctrl-C", highlight=False)


def make_project(folder: Path) -> None:
    """Write the files of a project and initialise DVC, and git where the folder is in no repository yet.

    Args:
        folder: made where it is not there; nothing in it is written over.

    Raises:
        ProjectError: a file of a project is there already, or DVC cannot be initialised.
    """
    wanted = (*FILES.values(), REQUIREMENTS, ".dvc")
    there = [name for name in wanted if (folder / name).exists()]
    if there:
        raise ProjectError(
            f"{shown(folder, 200)} already holds {', '.join(there)}: name a folder that is new, or without these files"
        )
    folder.mkdir(parents=True, exist_ok=True)
    templates = resources.files("shoal.cli") / "project"
    for source, target in FILES.items():
        (folder / target).write_text((templates / source).read_text(encoding="utf-8"), encoding="utf-8")
    (folder / REQUIREMENTS).write_text(f"shoal=={metadata.version('shoal')}\n")
    own = folder / "data" / "store" / "own"
    own.mkdir(parents=True, exist_ok=True)
    (own / ".gitkeep").touch()
    _initialise_dvc(folder)


def _initialise_dvc(folder: Path) -> None:
    """Initialise DVC in a folder: with git where there is git, below another repository as a part of it."""
    options = ["--no-scm"]
    if shutil.which("git"):
        inside = _run(folder, "git", "rev-parse", "--show-prefix")
        if inside is None and _run(folder, "git", "init", "-q") is None:
            raise ProjectError(f"git could not be initialised in {shown(folder, 200)}: `git init` there says why")
        options = ["--subdir"] if inside else []
    if _run(folder, sys.executable, "-m", "dvc", "init", "-q", *options) is None:
        raise ProjectError(f"DVC could not be initialised in {shown(folder, 200)}: `dvc init` there says why")
    config = folder / ".dvc" / "config"
    text = config.read_text() if config.exists() else ""
    head = "" if "[core]" in text else "[core]\n"
    config.write_text((head + text).replace("[core]\n", f"[core]\n{QUIET_DVC}", 1))


def _run(folder: Path, *command: str) -> str | None:
    """What a command says in a folder; None where it fails."""
    with contextlib.suppress(OSError):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None
    return None
