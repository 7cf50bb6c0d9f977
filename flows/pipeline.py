"""The flow of a whole run: prepare the data, deal them to clients, train in rounds, cluster, report."""

from __future__ import annotations

import contextlib
from typing import Any

from shoal.tasks.prefect.environment import quiet

quiet()

from prefect import flow, runtime  # noqa: E402 (its environment comes first)
from prefect.client.orchestration import get_client  # noqa: E402
from prefect.states import Crashed  # noqa: E402

from shoal.engine.settings.run_settings import Settings  # noqa: E402
from shoal.engine.store.run_folder import RunFolder  # noqa: E402
from shoal.engine.workers.worker_processes import warm  # noqa: E402
from shoal.lifecycle.claim import claimed_run  # noqa: E402
from shoal.tasks.partition import partition  # noqa: E402
from shoal.tasks.prefect.artifacts import result_artifacts  # noqa: E402
from shoal.tasks.prefect.flow_run_names import flow_run_name  # noqa: E402
from shoal.tasks.prefect.stages import (  # noqa: E402
    UNIT_RUNNER,
    closing_warnings,
    drive_as_task_runs,
    tag_flow_run,
    untagged,
)
from shoal.tasks.prepare import prepare  # noqa: E402


@flow(name="pipeline", flow_run_name=flow_run_name, task_runner=UNIT_RUNNER)  # type: ignore[arg-type]
def pipeline(settings: Settings, resume: bool = True) -> dict[str, Any]:
    """Prepare the data, deal them to clients, train in rounds, cluster every sample, and report.

    Args:
        settings: of the run; the same model as the settings file and `--set`.
        resume: resume an unfinished run of the same settings, where there is one.

    Returns:
        The result of the run (`shoal.review.results.result.RunResult`), as JSON.
    """
    if settings.workers.runner == "local":
        warm()  # worker processes import what they need while the data are prepared
    tag_flow_run(settings)
    with untagged():
        data = prepare(settings)
        partition(settings, data.folder)
    with claimed_run(settings, resume=resume) as folder:
        end_lost_flow_runs(folder)
        with closing_warnings(folder):
            result = drive_as_task_runs(folder)
        result_artifacts(folder)
    return result.to_json()


def end_lost_flow_runs(folder: RunFolder) -> None:
    """Tell Prefect that the flow runs that worked on a run before are over.

    A process that was killed could not say so itself, and its flow runs would be shown as running for ever.
    Call it from the flow run that has the run now.
    """
    lost_run = (folder.lineage().get("prefect") or {}).get("flow_run")
    with contextlib.suppress(Exception), get_client(sync_client=True) as client:  # Prefect knows them no more
        while lost_run and str(lost_run) != str(runtime.flow_run.id):
            run = client.read_flow_run(lost_run)
            if run.state is not None and run.state.is_running():
                about = f"its process was killed; flow run {runtime.flow_run.id} goes on with {folder.name}"
                client.set_flow_run_state(run.id, Crashed(message=about), force=True)
            parent = client.read_task_run(run.parent_task_run_id) if run.parent_task_run_id else None
            lost_run = parent.flow_run_id if parent is not None else None
