"""Names of flow runs."""

from __future__ import annotations

from prefect import runtime

from shoal.engine.settings.run_settings import Settings
from shoal.review.results.summary import counted


def run_title(settings: Settings) -> str:
    """Return the name of a run in a few words."""
    title = f"{settings.method.name} on {settings.data.name}"
    if settings.chooses_method and settings.rounds is None:
        return title
    return f"{title}, {counted(settings.rounds, 'round')}"


def pipeline_title() -> str:
    """Return the name of a pipeline's flow run."""
    return run_title(runtime.flow_run.parameters["settings"])
