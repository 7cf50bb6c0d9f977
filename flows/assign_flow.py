"""The flow that assigns new files of a watched folder to the clusters of the champion."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from prefect import flow, get_run_logger

from shoal.flows.tell import tell_failure
from shoal.lifecycle.assign_settings import AssignSettings
from shoal.tasks.assign_new import assign_new
from shoal.tasks.prefect.stages import without_tags


@flow(
    name="assign", flow_run_name="assign with {assignment.model}", on_failure=[tell_failure], on_crashed=[tell_failure]
)
def assign(assignment: AssignSettings) -> dict[str, Any]:
    """Assign the new files of a folder to the clusters of the model in use; each file once.

    A killed flow run leaves a whole batch or none, and the next one does what is left.

    Args:
        assignment: the model, the folder, and where the tables go.

    Returns:
        What became of the files (`shoal.lifecycle.assigning.Assignment`), as JSON.
    """
    log = get_run_logger()
    with without_tags():
        done = assign_new(assignment)
    log.info(done.message)
    for each in done.left_out:
        log.warning(f"left out: {each}")
    if not done.logged:
        log.warning("MLflow does not have all batches: the next flow run logs them")
    return asdict(done)
