"""The flow of a search over settings: execute the trials that are left, then show the best."""

from __future__ import annotations

from typing import Any

from prefect import flow

from shoal.engine.workers.worker_processes import start_fork_server
from shoal.sweeps.search.definition import SearchDefinition
from shoal.sweeps.search.runner import open_search
from shoal.tasks.prefect.stages import without_tags
from shoal.tasks.trial import trial


@flow(name="search", flow_run_name="search {definition.name}")
def search(definition: SearchDefinition) -> dict[str, Any]:
    """Execute the trials of a search that are still to do, and write the page of its result.

    Args:
        definition: the content of a search file; the same definition again continues the search.

    Returns:
        The result of the search (`shoal.sweeps.search.result.SearchResult`), as JSON.
    """
    start_fork_server()
    with without_tags(), open_search(definition) as opened:
        for number in opened.left():
            trial(opened, number)
        result = opened.finish()
    return result.to_json()
