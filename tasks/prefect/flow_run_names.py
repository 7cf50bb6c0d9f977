"""What flow runs are called."""

from __future__ import annotations

from pathlib import Path

from prefect import runtime

from shoal.engine.settings.run_settings import Settings


def run_title(settings: Settings) -> str:
    """A federation in a few words."""
    return f"{settings.method.name} on {settings.data.name}, {settings.rounds} rounds"


def flow_run_name() -> str:
    """The name of the flow run that asks, after its parameters: the settings, or the run's folder."""
    given = runtime.flow_run.parameters
    settings = given.get("settings")
    if settings is None:
        return f"{runtime.flow_run.flow_name} {Path(given.get('run', '')).name}".strip()
    return run_title(settings)


def night_title() -> str:
    """The name of a night's flow run, after the data set that it is of."""
    return f"night of {runtime.flow_run.parameters['settings'].data.name}"


def search_title() -> str:
    """The name of a search's flow run."""
    return f"search {runtime.flow_run.parameters['definition'].name}"
