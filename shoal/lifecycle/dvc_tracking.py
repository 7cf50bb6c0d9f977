"""Sets of the user's own in DVC: where the home folder is a DVC repository, `shoal data add` also does `dvc add`."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.prepared import PreparedSet
from shoal.engine.settings.private_home import make_cache, user_umask
from shoal.engine.store.user_name import name_user

STAGE_VARIABLE = "DVC_STAGE"
"""Set by DVC in the commands of its stages, which hold DVC's lock."""


@dataclass(frozen=True)
class StoredSet:
    """A set of the user's own that was added, or that an encoder made of images.

    Attributes:
        prepared: the set.
        message: what was done, in a sentence.
        pointer: DVC's pointer to it, a small file for git; None outside a DVC repository.
        warning: why DVC did not take it; empty where it did, or was not asked.
        intake: what was taken, adapted and left out.
    """

    prepared: PreparedSet
    message: str = ""
    pointer: Path | None = None
    warning: str = ""
    intake: Intake = field(default_factory=Intake)


def dvc_root(folder: Path) -> Path | None:
    """Return the DVC repository that a folder lies in; None outside one."""
    folder = folder.resolve()
    return next((place for place in (folder, *folder.parents) if (place / ".dvc" / "config").is_file()), None)


def track(path: Path) -> tuple[Path | None, str]:
    """Put a folder under DVC's care; where DVC refuses, the folder is as it was.

    Args:
        path: the folder of a data set.

    Returns:
        DVC's pointer to it, a small file for git; None where there is no DVC repository, or within one of its stages.
        Why DVC refused; empty where it did not.
    """
    root = dvc_root(path.parent)
    if root is None or os.environ.get(STAGE_VARIABLE):
        return None, ""
    # Without --no-relink DVC removes each file and links it from its cache: a kill in between leaves a set without it.
    done = dvc(root, "add", "--no-relink", str(path.resolve()))
    if done.returncode:
        refused = f"the data set is in {path}, but DVC in {root} did not take it ({refusal(done)})"
        return None, f"{refused}: run `dvc add {path}` once that works"
    return path.with_name(f"{path.name}.dvc"), ""


def dvc(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of DVC.

    Args:
        root: of the DVC repository.
        words: the command.
    """
    make_cache(root)
    name_user()
    command = [sys.executable, "-m", "dvc", *words]
    return subprocess.run(command, cwd=root, umask=user_umask(), capture_output=True, text=True)


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """Return on one line why DVC refused a command; it names the file to remove where a killed DVC left its lock."""
    return " ".join((done.stderr or done.stdout).split()).removeprefix("ERROR: ")
