"""The flow of a search over settings: propose a trial, carry it out, keep it; again until done; then show the best."""

from __future__ import annotations

from typing import Any

from shoal.tasks.prefect.environment import quiet

quiet()

from prefect import flow, runtime, task  # noqa: E402 (its environment comes first)

from shoal.engine.workers.worker_processes import warm  # noqa: E402
from shoal.flows.artifacts import search_artifacts  # noqa: E402
from shoal.flows.names import search_title  # noqa: E402
from shoal.flows.task_runs import untagged  # noqa: E402
from shoal.sweeps.search.definition import SearchDefinition, check_search  # noqa: E402
from shoal.sweeps.search.result import TrialRow  # noqa: E402
from shoal.sweeps.search.runner import Search, open_search  # noqa: E402
from shoal.tasks.prefect.retries import OF_A_ROUND  # noqa: E402


def trial_title() -> str:
    """The name of a trial's task run."""
    return f"trial {runtime.task_run.parameters['number']}"


@task(name="trial", task_run_name=trial_title, **OF_A_ROUND)
def trial(search: Search, number: int) -> TrialRow:
    """Execute one trial.

    Args:
        search: that this process works on.
        number: of the trial.
    """
    return search.execute_next()


@flow(name="search", flow_run_name=search_title)
def search(definition: SearchDefinition) -> dict[str, Any]:
    """All trials of a search that are still to be carried out, and the page of what was found.

    Args:
        definition: as a search file has it; the same again goes on where it stands.

    Returns:
        What the search came to (`shoal.sweeps.search.result.SearchResult`), as JSON.
    """
    check_search(definition)
    warm()
    with untagged(), open_search(definition) as opened:
        for number in opened.left():
            trial(opened, number)
        result = opened.finish()
    search_artifacts(result)
    return result.to_json()
