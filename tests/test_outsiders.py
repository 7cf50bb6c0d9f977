"""The short version of what outsiders try: they find nothing in a home."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.outsiders import IS_ROOT, Tried, table

pytestmark = pytest.mark.skipif(not IS_ROOT, reason="only root can act as two users")


@pytest.fixture
def temp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that other users can enter, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def shoal(home: Path, *words: str) -> str:
    """What a command says to a user with the umask of most."""
    gone = ("SHOAL", "PREFECT", "MLFLOW")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(gone)}
    command = [sys.executable, "-m", "shoal.cli.main", *words]
    done = subprocess.run(command, cwd=home, env=environment, umask=0o022, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


def readable(home: Path) -> set[str]:
    """What another user can read below a home: files, and folders that can be listed."""
    command = f"find {home} -readable -not -path '*/.git/*' -not -path '*/.dvc/tmp*' -printf '%P\\n'"
    done = subprocess.run(["su", "-s", "/bin/sh", "nobody", "-c", command], capture_output=True, text=True, check=False)
    return set(done.stdout.split("\n")) - {""}


@pytest.mark.long
@pytest.mark.skipif(shutil.which("su") is None, reason="there is no su, which makes the second user")
def test_another_user_reads_the_files_of_a_project_and_nothing_else(temp: Path) -> None:
    shoal(temp, "init", "project")
    home = temp / "project"
    project = {".git", ".gitignore", ".dvcignore", "data", "dvc.yaml", "params.yaml", "prefect.yaml", "stage.sh"}
    project |= {"shoal-version.txt", ".dvc", ".dvc/config", ".dvc/.gitignore"}
    assert readable(home) == project
    (home / "table.csv").write_text("client,a,b\n" + "".join(f"{n % 2},{n},{n * n}\n" for n in range(40)))
    (home / "table.csv").chmod(0o600)
    shoal(home, "data", "add", "table.csv", "--name", "mine", "--client-column", "client")
    wanted = ("method.name=kmeans", "data.name=mine", "model.clusters=2", "tracking.prefect=off")
    shoal(home, "run", *(word for setting in wanted for word in ("--set", setting)))
    made = ("data/store/own/mine/manifest.json", "data/store/own/mine.dvc", "mlflow/mlflow.db")
    assert all((home / name).is_file() for name in made)
    assert readable(home) == project


def test_what_got_through_is_named() -> None:
    found = [Tried("another user", "reading", 2, ["a is read"]), Tried("a page", "asking", 3, [])]
    assert table(found).splitlines()[2:] == [
        "| another user | reading | 2 | 1 |",
        "| a page | asking | 3 | 0 |",
        "",
        "- another user: a is read",
    ]
