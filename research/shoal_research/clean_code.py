"""Which code a result may be kept of: commits of this repository, without a change on top."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from shoal_research.definition import StudyError


def require_clean_code(study: str, scale: str, commits: Sequence[str], repository: Path) -> None:
    """Check that numbers come from committed code that others can get: the checked-out commit, or one before it.

    Args:
        study, scale: of the result.
        commits: twelve digits each; a + follows where the work tree differed.
        repository: folder of the repository.

    Raises:
        StudyError: a commit is not known, had changes on top, or is not part of the repository's history.
    """
    for commit in commits:
        command = ["git", "merge-base", "--is-ancestor", commit, "HEAD"]
        if subprocess.run(command, cwd=repository, capture_output=True, timeout=30, check=False).returncode:
            raise StudyError(
                f"cells of {study!r} were measured on {commit}, which is no commit of this branch: commit the code, "
                f"and run shoal study {study} --scale {scale} in a new SHOAL_HOME"
            )
