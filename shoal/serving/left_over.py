"""Flow runs that ended together with the service, and that Prefect still takes for running.

Prefect hears of the end of a flow run's process from the worker. Where both were ended, by Ctrl-C or by a power cut,
the flow run would be running for ever, and a deployment that runs once at a time would never run again.
"""

from __future__ import annotations

import socket
from typing import Any

import psutil

from shoal.serving.deployments import POOL, ask

WORKER = f"shoal serve on {socket.gethostname()}"
"""The name of the service's worker."""
UNDER_WAY = ("PENDING", "RUNNING", "CANCELLING")
MESSAGE = "It ended together with `shoal serve`. The deployment's next run with these settings goes on with it."


def end_left_over(api: str) -> list[str]:
    """Mark the flow runs as crashed whose process is gone, before the service's worker starts.

    Where other workers are online none is marked: their processes may be on other machines.

    Args:
        api: address of the server's API.

    Returns:
        The names of the flow runs.

    Raises:
        DeploymentError: the server does not answer.
    """
    online = {"workers": {"status": {"any_": ["ONLINE"]}}}
    workers = ask(api, "POST", f"/work_pools/{POOL}/workers/filter", online)
    if any(worker["name"] != WORKER for worker in workers):
        return []
    wanted = {
        "work_pools": {"name": {"any_": [POOL]}},
        "flow_runs": {"state": {"type": {"any_": list(UNDER_WAY)}}},
    }
    gone = [run for run in ask(api, "POST", "/flow_runs/filter", wanted) if not has_process(run)]
    for run in gone:
        state = {"type": "CRASHED", "name": "Crashed", "message": MESSAGE}
        ask(api, "POST", f"/flow_runs/{run['id']}/set_state", {"state": state})
    return [run["name"] for run in gone]


def has_process(run: dict[str, Any]) -> bool:
    """Return whether the process of a flow run, as the API describes it, still works on this machine."""
    number = str(run.get("infrastructure_pid") or "")
    return number.isdecimal() and psutil.pid_exists(int(number))
