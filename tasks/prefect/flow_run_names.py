"""Names of flow runs."""

from __future__ import annotations

from pathlib import Path

from prefect import runtime

from shoal.engine.settings.run_settings import Settings
from shoal.review.results.summary import counted


def run_title(settings: Settings) -> str:
    """Return the name of a run in a few words."""
    title = f"{settings.method.name} on {settings.data.name}"
    if settings.chooses_method and settings.rounds is None:
        return title
    return f"{title}, {counted(settings.rounds, 'round')}"


def flow_run_name() -> str:
    """Return the name of this flow run by its parameters: the settings, or the run's folder."""
    parameters = runtime.flow_run.parameters
    settings = parameters.get("settings")
    if settings is None:
        return f"{runtime.flow_run.flow_name} {Path(parameters.get('run', '')).name}".strip()
    return run_title(settings)


def night_title() -> str:
    """Return the name of a night's flow run: it names the data set."""
    return f"night of {runtime.flow_run.parameters['settings'].data.name}"


def assign_title() -> str:
    """Return the name of an assignment's flow run: it names the model."""
    return f"assign with {runtime.flow_run.parameters['assignment'].model}"


def search_title() -> str:
    """Return the name of a search's flow run."""
    return f"search {runtime.flow_run.parameters['definition'].name}"
