"""The flow of a whole run: prepare the data, deal them to clients, train in rounds, cluster, report."""

from __future__ import annotations

from typing import Any

from prefect import flow

from shoal.engine.settings.run_settings import Settings
from shoal.engine.workers.worker_processes import start_fork_server
from shoal.lifecycle.claim import claimed_run
from shoal.tasks.partition import partition
from shoal.tasks.prefect.artifacts import result_artifacts
from shoal.tasks.prefect.flow_run_names import pipeline_title
from shoal.tasks.prefect.stages import (
    UNIT_RUNNER,
    drive_as_task_runs,
    tag_flow_run,
    wait_for_sites,
    without_tags,
)
from shoal.tasks.prepare import prepare


@flow(name="pipeline", flow_run_name=pipeline_title, task_runner=UNIT_RUNNER)  # type: ignore[arg-type]
def pipeline(settings: Settings, resume: bool = True) -> dict[str, Any]:
    """Prepare the data, deal them to clients, train in rounds, cluster every sample, and report.

    Args:
        settings: Settings of the run, the same as in a settings file and in `--set`.
        resume: resume an unfinished run of the same settings, where there is one.

    Returns:
        The result of the run (`shoal.review.results.result.RunResult`), as JSON.
    """
    if settings.workers.runner == "local":
        start_fork_server()  # worker processes import what they need while the data are prepared
    tag_flow_run(settings)
    wait_for_sites(settings)
    with without_tags():
        data = prepare(settings)
        partition(settings, data.folder)
    with claimed_run(settings, resume=resume, data=data.digest) as folder:
        result = drive_as_task_runs(folder)
        result_artifacts(folder)
    return result.to_json()
