"""The task that draws a run's figures and writes its report."""

from __future__ import annotations

from prefect import task

from shoal.lifecycle.run_views import MakeViews
from shoal.tasks.prefect.once import execute_once
from shoal.tasks.prefect.retries import NO_RETRY


@task(name="report", **NO_RETRY)
def report(run: MakeViews, ticket: str | None = None) -> None:
    """Draw the figures of a finished run and write its report, unless they are there and up to date.

    Args:
        run: the run's folder.
        ticket: see `shoal.tasks.prefect.once`.
    """
    execute_once(run, ticket)
