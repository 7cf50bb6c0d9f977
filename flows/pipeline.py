"""The flow of a whole run: prepare the data, deal them to clients, train in rounds, cluster, report."""

from __future__ import annotations

from typing import Any

from shoal.tasks.prefect.environment import set_prefect_defaults

set_prefect_defaults()

from prefect import flow, get_run_logger  # noqa: E402 (its environment comes first)

from shoal.engine.settings.run_settings import Settings  # noqa: E402
from shoal.engine.store.run_folder import RunFolder  # noqa: E402
from shoal.engine.workers.worker_processes import start_fork_server  # noqa: E402
from shoal.lifecycle.claim import (  # noqa: E402
    USED_AGAIN,
    claimed_run,
    equal_run,
)
from shoal.review.results.result import RunResult, run_result  # noqa: E402
from shoal.tasks.partition import partition  # noqa: E402
from shoal.tasks.prefect.artifacts import result_artifacts  # noqa: E402
from shoal.tasks.prefect.flow_run_names import pipeline_title  # noqa: E402
from shoal.tasks.prefect.stages import (  # noqa: E402
    UNIT_RUNNER,
    drive_as_task_runs,
    tag_flow_run,
    wait_for_sites,
    without_tags,
)
from shoal.tasks.prepare import prepare  # noqa: E402


@flow(name="pipeline", flow_run_name=pipeline_title, task_runner=UNIT_RUNNER)  # type: ignore[arg-type]
def pipeline(settings: Settings, resume: bool = True, again: bool = False) -> dict[str, Any]:
    """Prepare the data, deal them to clients, train in rounds, cluster every sample, and report.

    A finished run with equal settings, data and code is used again: a new one would give the same result.

    Args:
        settings: Settings of the run, the same as in a settings file and in `--set`.
        resume: resume an unfinished run of the same settings, where there is one.
        again: compute a new run even where a finished one is equal.

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
    if not again and (earlier := equal_run(settings)) is not None:
        return use_again(earlier).to_json()
    with claimed_run(settings, resume=resume, data=data.digest) as folder:
        result = drive_as_task_runs(folder)
        result_artifacts(folder)
    return result.to_json()


def use_again(run: RunFolder) -> RunResult:
    """Return the result of a finished run in place of a new one; the flow's log and the run's events say so."""
    message = f"run {run.name} has equal settings, data and code and is used again (again=true computes a new run)"
    get_run_logger().info(message)
    run.event(USED_AGAIN, message=message)
    result_artifacts(run)
    return run_result(run)
