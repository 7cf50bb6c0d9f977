"""The task that draws a run's figures and writes its report."""

from __future__ import annotations

from prefect import task

from shoal.tasks.prefect.once import SingleExecution
from shoal.tasks.prefect.retries import NO_RETRY


@task(name="report", **NO_RETRY)
def report(work: SingleExecution) -> None:
    """Draw the figures of a finished run and write its report, unless they are there and up to date."""
    work()
