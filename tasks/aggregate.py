"""The task that computes the next server state."""

from __future__ import annotations

from shoal.tasks.prefect.once import unit_task

aggregate = unit_task("aggregate")
"""Aggregates the clients' answers of a round; the new state is then in the run's folder."""
