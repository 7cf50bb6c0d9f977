"""Which code a result may be kept of: commits of this repository, without a change on top."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from shoal_research.definition import StudyError
from shoal_research.provenance import CHANGED, UNKNOWN


def require_clean_code(study: str, scale: str, commits: Sequence[str], repository: Path) -> None:
    """Check that numbers come from committed code that others can get.

    Args:
        study, scale: of the result.
        commits: as provenance names them.
        repository: folder of the repository.

    Raises:
        StudyError: a commit is not known, had changes on top, or is not part of the repository's history.
    """
    again = f"commit the code, and run shoal study {study} --scale {scale} in a new SHOAL_HOME"
    for commit in commits:
        if commit == UNKNOWN:
            raise StudyError(f"the result of {study!r} was measured outside of a repository: {again}")
        if commit.endswith(CHANGED):
            commit_hash = commit.removesuffix(CHANGED)
            raise StudyError(
                f"the result of {study!r} was measured on a work tree that differs from {commit_hash}: {again}"
            )
        if not is_part_of(commit, repository):
            raise StudyError(
                f"the result of {study!r} was measured on commit {commit}, which is not part of this branch: "
                f"merge it, or {again}"
            )


def is_part_of(commit: str, repository: Path) -> bool:
    """Return whether a commit is the checked-out one, or one before it."""
    command = ["git", "merge-base", "--is-ancestor", commit, "HEAD"]
    try:
        return subprocess.run(command, cwd=repository, capture_output=True, timeout=30, check=False).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False
