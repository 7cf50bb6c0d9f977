"""The task that logs a finished run to MLflow."""

from __future__ import annotations

from shoal.tasks.prefect.once import unit_task

log = unit_task("log")
"""Logs a finished run to MLflow: metrics, tables, figures, report, and its states as models."""
