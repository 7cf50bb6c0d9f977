"""The task that assigns new files of a watched folder to the champion's clusters."""

from __future__ import annotations

from prefect import task

from shoal.lifecycle import assigning
from shoal.lifecycle.assign_settings import AssignSettings
from shoal.lifecycle.assigning import Assignment
from shoal.tasks.prefect.retries import RETRY_ON_IO


@task(name="assign new files", **RETRY_ON_IO)
def assign_new(assignment: AssignSettings) -> Assignment:
    """Assign the files that are new, write their table and contact sheet, and log both to MLflow.

    Raises:
        ShoalError: there is no champion, no folder, or MLflow does not answer.
    """
    return assigning.assign_new(assignment)
