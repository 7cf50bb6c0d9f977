"""The task that draws a run's figures and writes its report."""

from __future__ import annotations

from prefect import task

from shoal.lifecycle.run_views import MakeViews
from shoal.tasks.prefect.once import done_once
from shoal.tasks.prefect.retries import OF_A_ROUND


@task(name="report", **OF_A_ROUND)
def report(run: MakeViews, ticket: str | None = None) -> None:
    """Draw the figures of a finished run and write its report, where they are missing or out of date.

    Args:
        run: the run's folder.
        ticket: see `shoal.tasks.prefect.once`.
    """
    done_once(run, ticket)
