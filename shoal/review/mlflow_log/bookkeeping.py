"""The tags by which a sync knows how far MLflow has a run; the names begin with `mlflow.`, so that no page shows them.

Earlier versions wrote some of them under names that pages show: these are read, and removed at the end of a sync.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FORMER = {f"shoal.{what}": f"mlflow.shoal.{what}" for what in ("rounds_logged", "quality_logged", "files_logged")}
"""The present names of tags, by their former names."""


def bookkeeping(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the tags of an MLflow run under their present names.

    >>> bookkeeping({"shoal.rounds_logged": "3", "shoal.run": "one"})
    {'shoal.rounds_logged': '3', 'shoal.run': 'one', 'mlflow.shoal.rounds_logged': '3'}
    """
    return {**tags, **{FORMER[key]: value for key, value in tags.items() if key in FORMER and FORMER[key] not in tags}}


def remove_former(client: Any, run_id: str, tags: Mapping[str, str]) -> None:
    """Copy the tags of an MLflow run that have former names to their present names, and remove the former."""
    present = bookkeeping(tags)
    for key in tags.keys() & FORMER.keys():
        client.set_tag(run_id, FORMER[key], present[FORMER[key]])
        client.delete_tag(run_id, key)
