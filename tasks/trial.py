"""The task that executes one trial of a search over settings."""

from __future__ import annotations

from prefect import task

from shoal.sweeps.search.result import TrialRow
from shoal.sweeps.search.runner import Search
from shoal.tasks.prefect.retries import NO_RETRY


@task(name="trial", task_run_name="trial {number}", **NO_RETRY)
def trial(search: Search, number: int) -> TrialRow:
    """Execute the next trial of a search.

    Args:
        search: the search, open in this process.
        number: of the trial; it names the task run.
    """
    return search.execute_next()
