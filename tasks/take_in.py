"""The task that adds new data to a night's data set."""

from __future__ import annotations

from prefect import task

from shoal.lifecycle import taking_in
from shoal.tasks.prefect.retries import RETRY_ON_IO

take_in = task(name="take in", **RETRY_ON_IO)(taking_in.take_in)
"""Brings the data set of a night up to date with its watched folder; after an error the set is unchanged."""
