"""Flow runs of killed processes: they are marked as crashed in Prefect.

A killed process could not say so itself, and Prefect would show its flow runs as running for ever.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from uuid import UUID

from prefect import runtime
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun
from prefect.states import Crashed

from shoal.engine.store.run_folder import RunFolder

FLOW_RUN_FILE = "flow_run"
"""File of a run's folder: the id of the last flow run that worked on it."""
UNDER_WAY = ("PENDING", "RUNNING")
"""States of flow runs that a process works on."""


def take_over(run: RunFolder) -> None:
    """End the flow run that worked on a run before, and the flow runs that it was part of; this one works on it now.

    Call it from a flow run of the process that has locked the run.

    Args:
        run: the run's folder.
    """
    file = run.path / FLOW_RUN_FILE
    if file.exists():
        _end(file.read_text(), f"resumes {run.name}")
    file.write_text(str(runtime.flow_run.id))


def end_lost_night(lost: str, data: str) -> None:
    """End the flow run of a night whose process was killed.

    Args:
        lost: its id; empty where there was none.
        data: name of the data set of the night.
    """
    if lost:
        _end(lost, f"is the next night of {data}")


def _end(lost: str, instead: str) -> None:
    """End a flow run and those that it is part of, where Prefect shows them as under way.

    Args:
        lost: its id.
        instead: what the flow run of this process does, for the message.
    """
    with (
        contextlib.suppress(Exception),
        get_client(sync_client=True) as client,
    ):  # Prefect is out of reach
        message = f"its process was killed; flow run {runtime.flow_run.id} {instead}"
        own = {run.id for run in with_parents(client, UUID(str(runtime.flow_run.id)))}
        for run in with_parents(client, UUID(lost)):
            if run.id in own:
                break
            if run.state is not None and run.state.type.value in UNDER_WAY:
                client.set_flow_run_state(run.id, Crashed(message=message), force=True)


def with_parents(client: SyncPrefectClient, flow_run: UUID) -> Iterator[FlowRun]:
    """Yield a flow run, the one that it is part of, and so on."""
    above: UUID | None = flow_run
    while above is not None:
        run = client.read_flow_run(above)
        yield run
        above = None
        if run.parent_task_run_id is not None:
            above = client.read_task_run(run.parent_task_run_id).flow_run_id
