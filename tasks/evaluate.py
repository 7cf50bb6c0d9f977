"""The task that computes the metrics of a round."""

from __future__ import annotations

from shoal.tasks.prefect.once import unit_task

evaluate = unit_task("evaluate")
"""Has workers compute the metrics of a round's server state."""
