"""The task that records in MLflow which model is the champion."""

from __future__ import annotations

from pathlib import Path

from prefect import task

from shoal.engine.store.run_folder import RunFolder
from shoal.review.served.promotion import execute_decision
from shoal.tasks.prefect.retries import RETRY_ON_IO


@task(name="decide", **RETRY_ON_IO)
def decide(run: str) -> str | None:
    """Record the decision on a challenger in MLflow: the alias `champion`, and tags.

    Args:
        run: folder of the challenger's run.

    Returns:
        The version of its model.
    """
    return execute_decision(RunFolder(Path(run)))
