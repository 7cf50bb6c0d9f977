"""The task that trains a cohort of clients of a round."""

from __future__ import annotations

from prefect import task

from shoal.tasks.prefect.once import SingleExecution
from shoal.tasks.prefect.retries import NO_RETRY


@task(name="train", **NO_RETRY)
def train(work: SingleExecution) -> None:
    """Train some clients of a round on one worker; their answers are then in the run's folder."""
    work()
