"""Versions of code: the commit and state of the user's project, and the version of Shoal with a digest of its files."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2]
"""The folder of the package `shoal`."""
PROJECT = (".", ":!dvc.lock", ":!*.dvc", ":!data/store", ":!runs", ":!results", ":!mlflow")
"""What of a project counts, as git's pathspecs: not what runs and DVC write, whose digests stand in the lineage."""
SHOAL = ("shoal", "data", "flows", "models", "tasks", ":!data/store")
"""The package in a clone of Shoal, as git's pathspecs."""
OTHER_REPOSITORY = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
"""Variables by which git's hooks name their own repository."""


@dataclass(frozen=True)
class GitState:
    """A commit, and whether the files differ from it; outside git every entry is None.

    Args:
        commit: hash of the commit.
        dirty: whether a file of the commit has changed, or there is new code in no commit.
    """

    commit: str | None
    dirty: bool | None

    def in_words(self) -> str:
        """Return the commit, with a note on changes; empty outside git."""
        if self.commit and self.dirty:
            return f"{self.commit} with changes"
        return self.commit or ""


@dataclass(frozen=True)
class ShoalVersion:
    """The Shoal that computed a run.

    Args:
        version: of the package.
        sha256: digest of its Python files.
        git: commit of the clone that it runs from; without entries where it is installed.
    """

    version: str
    sha256: str
    git: GitState

    def in_words(self) -> str:
        """Return the version, with the commit if it runs from a clone."""
        if commit := self.git.in_words():
            return f"{self.version}, commit {commit}"
        return self.version


def project_state(project: Path) -> GitState:
    """Return the commit of a project, and whether the project differs from it."""
    return git_state(project, PROJECT, new=".py")


@functools.cache
def shoal_version() -> ShoalVersion:
    """Return the Shoal that this process runs."""
    clone = PACKAGE.parent
    state = GitState(None, dirty=None)
    # An installed package may lie below a repository that is not its own, such as in PROJECT/.venv.
    if git(clone, "ls-files", "--error-unmatch", "shoal/__init__.py"):
        state = git_state(clone, SHOAL, new="")
    return ShoalVersion(package_version("shoal"), digest_of_package(PACKAGE), state)


def package_version(name: str) -> str:
    """Return the version of an installed package, or `absent`."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"


def digest_of_package(package: Path) -> str:
    """Return the sha256 of the Python files of a package and their names: the same in a clone and installed."""
    digest = hashlib.sha256()
    for path in sorted(python_files(package), key=lambda path: path.relative_to(package).as_posix()):
        digest.update(
            f"{path.relative_to(package).as_posix()} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode()
        )
    return digest.hexdigest()


def python_files(package: Path) -> Iterator[Path]:
    """Yield the Python files of a package and of the packages in it; in a clone some of these are links."""
    for place, folders, files in os.walk(package, followlinks=True):
        folders[:] = [name for name in folders if Path(place, name, "__init__.py").is_file()]
        yield from (Path(place, name) for name in files if name.endswith(".py"))


def git(root: Path, *arguments: str) -> str | None:
    """Return what a command of git prints in a folder; None where git is missing or refuses."""
    environment = {name: value for name, value in os.environ.items() if name not in OTHER_REPOSITORY}
    command = ["git", "--no-optional-locks", *arguments]
    try:
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def git_state(root: Path, paths: tuple[str, ...], new: str) -> GitState:
    """Return the commit at a folder, and whether files below it differ from it.

    Args:
        root: the folder.
        paths: which files count, as git's pathspecs.
        new: end of the names of files that count although they are in no commit.
    """
    commit = git(root, "rev-parse", "--verify", "HEAD")
    changes = git(root, "status", "--porcelain", "--untracked-files=all", "--", *paths)
    if not commit or changes is None:
        return GitState(commit or None, dirty=None)
    lines = changes.splitlines()
    return GitState(commit, any(not line.startswith("??") or line.rstrip('"').endswith(new) for line in lines))
