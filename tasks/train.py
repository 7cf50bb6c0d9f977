"""The task that trains a cohort of clients of a round."""

from __future__ import annotations

from shoal.tasks.prefect.once import unit_task

train = unit_task("train")
"""Trains some clients of a round on one worker; their answers are then in the run's folder."""
