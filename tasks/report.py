"""The task that draws a run's figures and writes its report."""

from __future__ import annotations

from shoal.tasks.prefect.once import unit_task

report = unit_task("report")
"""Draws the figures of a finished run and writes its report, unless they are there and up to date."""
