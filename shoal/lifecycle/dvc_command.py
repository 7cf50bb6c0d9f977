"""DVC's commands, in the home of its user alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from shoal.engine.settings.private_home import make_cache, user_umask
from shoal.engine.store.user_name import name_user


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
