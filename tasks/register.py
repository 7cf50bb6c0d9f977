"""The task that registers a run's model in MLflow."""

from __future__ import annotations

from shoal.tasks.prefect.once import unit_task

register = unit_task("register")
"""Registers the model of a logged run, and moves the alias `challenger` or `champion`."""
