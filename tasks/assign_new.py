"""The task that assigns new files of a watched folder to the champion's clusters."""

from __future__ import annotations

from prefect import task

from shoal.lifecycle import assigning
from shoal.tasks.prefect.retries import RETRY_ON_IO

assign_new = task(name="assign new files", **RETRY_ON_IO)(assigning.assign_new)
"""Assigns the files that are new, writes their table and contact sheet, and logs both to MLflow."""
