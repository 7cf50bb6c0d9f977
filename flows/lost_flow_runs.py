"""Flow runs that a killed process left: Prefect is told that they are over.

A process that was killed could not say so itself, and Prefect would show its flow runs as running for ever.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from uuid import UUID

from shoal.tasks.prefect.environment import quiet

quiet()

from prefect import runtime  # noqa: E402 (its environment comes first)
from prefect.client.orchestration import SyncPrefectClient, get_client  # noqa: E402
from prefect.client.schemas.filters import FlowRunFilter  # noqa: E402
from prefect.client.schemas.objects import FlowRun  # noqa: E402
from prefect.states import Crashed  # noqa: E402

from shoal.engine.store.run_folder import RunFolder  # noqa: E402

PARTS = ("evaluate", "report")
"""Flows whose runs are named after the run that they work on, and are in no record of it."""
UNDER_WAY = ("PENDING", "RUNNING")
"""States of flow runs that a process works on."""


def end_lost_flow_runs(folder: RunFolder) -> None:
    """Tell Prefect that the flow runs that worked on a run before are over, and so are those that they were part of.

    Call it from a flow run of the process that holds the run now.

    Args:
        folder: of the run.
    """
    _end(lambda client: worked_on(client, folder), f"goes on with {folder.name}")


def end_lost_night(lost: str, data: str) -> None:
    """Tell Prefect that the flow run of a night is over, whose process was killed.

    Args:
        lost: its id; empty: there was none.
        data: name of the data set of the night.
    """
    _end(lambda client: [UUID(lost)] if lost else [], f"is the next night of {data}")


def worked_on(client: SyncPrefectClient, folder: RunFolder) -> list[UUID]:
    """Return the flow runs that worked on a run: the last one of its rounds, and those of what follows them."""
    prefect = folder.lineage().prefect
    training = [] if prefect is None else [UUID(prefect.flow_run)]
    names = [f"{part} {folder.name}" for part in PARTS]
    wanted = {"name": {"any_": names}, "state": {"type": {"any_": UNDER_WAY}}}
    followed = client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(wanted))
    return [*training, *(each.id for each in followed)]


def _end(lost: Callable[[SyncPrefectClient], list[UUID]], instead: str) -> None:
    """End flow runs and those that they are part of, where Prefect shows them as under way.

    Args:
        lost: gives their ids.
        instead: what the flow run of this process does.
    """
    with contextlib.suppress(Exception), get_client(sync_client=True) as client:  # Prefect does not answer
        message = f"its process was killed; flow run {runtime.flow_run.id} {instead}"
        own = {run.id for run in with_parents(client, UUID(str(runtime.flow_run.id)))}
        for one in lost(client):
            with contextlib.suppress(Exception):  # Prefect knows it no more
                for run in with_parents(client, one):
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
        parent = client.read_task_run(run.parent_task_run_id) if run.parent_task_run_id else None
        above = parent.flow_run_id if parent is not None else None
