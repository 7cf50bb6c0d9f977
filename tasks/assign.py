"""The task that finds the cluster of every sample, after the last round."""

from __future__ import annotations

from shoal.tasks.prefect.once import unit_task

assign = unit_task("assign")
"""Has a worker assign a cluster to every sample; the table is then in the run's folder."""
