"""`shoal init`: a project folder with settings, a DVC pipeline and Prefect deployments, without a clone of Shoal."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib import import_module, metadata, resources
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.console import say, shoal_command
from shoal.core.errors import ShoalError, shown
from shoal.engine.settings.private_home import make_cache, private_files, project_files

FILES = {
    "params.yaml": "params.yaml",
    "pipeline.yaml": "dvc.yaml",
    "prefect.yaml": "prefect.yaml",
    "stage.sh": "stage.sh",
    "gitignore": ".gitignore",
    "dvcignore": ".dvcignore",
}
"""The files of a project by their names in the package, which differ where DVC would take them for its own."""
VERSION = "shoal-version.txt"
app = typer.Typer(add_completion=False)


class ProjectError(ShoalError):
    """A project cannot be made in a folder."""


@app.command(epilog="Example: shoal init trial && cd trial && shoal run params.yaml")
def init(
    folder: Annotated[Path, typer.Argument(help="folder of the project; it is made if it is missing")],
) -> None:
    """Make a project folder: settings, a DVC pipeline and Prefect deployments."""
    make_project(folder)
    say(f"made a project in {folder}. In that folder:")
    commands = {
        f"{shoal_command('shoal', folder)} run params.yaml": "one run",
        f"{shoal_command('dvc', folder)} repro": "the same run as a pipeline, from the data to the report",
        f"{shoal_command('shoal', folder)} serve": "Prefect's deployments and MLflow's page, until Ctrl-C",
    }
    width = max(map(len, commands))
    for command, what in commands.items():
        say(f"    {command:{width}}    # {what}")


@project_files()
def make_project(folder: Path) -> None:
    """Write the files of a project and initialise DVC, and git where the folder is in no repository yet.

    Args:
        folder: made if it is missing; no file in it is overwritten.

    Raises:
        ProjectError: the folder holds a file of a project already, or DVC or git cannot be initialised.
    """
    import_module("dvc")  # before anything is written
    wanted = (*FILES.values(), VERSION, ".dvc")
    existing = [name for name in wanted if (folder / name).exists()]
    if existing:
        raise ProjectError(
            f"{shown(folder, 200)} already holds {', '.join(existing)}: name a new folder, or one without these files"
        )
    folder.mkdir(parents=True, exist_ok=True)
    templates = resources.files("shoal.cli") / "project"
    for source, target in FILES.items():
        (folder / target).write_text((templates / source).read_text(encoding="utf-8"), encoding="utf-8")
    (folder / VERSION).write_text(f"{metadata.version('shoal')}\n")
    own = folder / "data" / "store" / "own"
    (folder / "data").mkdir(exist_ok=True)
    with private_files():
        own.mkdir(parents=True, exist_ok=True)
    (own / ".gitkeep").touch()
    _initialise_dvc(folder)
    make_cache(folder)


def _initialise_dvc(folder: Path) -> None:
    """Initialise DVC in a folder: with git if it is installed, and as a part of the repository around it."""
    options = ["--no-scm"]
    if shutil.which("git"):
        inside = _run(folder, "git", "rev-parse", "--show-prefix")
        if inside is None and _run(folder, "git", "init", "-q") is None:
            raise ProjectError(f"git could not be initialised in {shown(folder, 200)}: run `git init` there to see why")
        options = ["--subdir"] if inside else []
    if _run(folder, sys.executable, "-m", "dvc", "init", "-q", *options) is None:
        raise ProjectError(f"DVC could not be initialised in {shown(folder, 200)}: run `dvc init` there to see why")
    for option in ("analytics", "check_update"):
        _run(folder, sys.executable, "-m", "dvc", "config", f"core.{option}", "false")


def _run(folder: Path, *command: str) -> str | None:
    """Return the output of a command in a folder; None where it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return None if done.returncode else done.stdout.strip()
