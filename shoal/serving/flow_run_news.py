"""Lines on the console of `shoal serve` when a flow run starts and when it ends."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from shoal.serving.deployments import POOL, ask, known_deployments

NEWS_SECONDS = 5.0
"""Time between two looks at the flow runs."""
LATEST = 50
"""So many flow runs are looked at, those that started last."""
MAX_REASON = 300
"""Characters of Prefect's message that are shown of a flow run that did not complete."""


class FlowRunNews:
    """Tells which flow runs of the work pool have started and ended since the last check.

    Args:
        api: address of Prefect's API.
        page: address of Prefect's page.
        tell: shows a line.
    """

    def __init__(self, api: str, page: str, tell: Callable[[str], None]) -> None:
        self.api = api
        self.page = page
        self.tell = tell
        self._states: dict[str, str] | None = None

    def check(self) -> None:
        """Tell of every flow run whose state is another than at the last check; the first check only remembers.

        Raises:
            DeploymentError: the server does not answer.
        """
        wanted = {
            "work_pools": {"name": {"any_": [POOL]}},
            # Those that are only planned would come first.
            "flow_runs": {"state": {"type": {"not_any_": ["SCHEDULED"]}}},
            "sort": "START_TIME_DESC",
            "limit": LATEST,
        }
        runs = ask("POST", f"{self.api}/flow_runs/filter", json=wanted).json()
        before = self._states
        self._states = {run["id"]: run["state_type"] for run in runs}
        changed = [run for run in runs if before is not None and before.get(run["id"]) != run["state_type"]]
        if not changed:
            return
        names = {each["id"]: each["name"] for each in known_deployments(self.api)}
        for run in reversed(changed):
            line = news_line(run, names.get(run["deployment_id"], "a flow run"), self.page)
            if line:
                self.tell(line)


def news_line(run: dict[str, Any], deployment: str, page: str) -> str:
    """Return the line on a flow run that has started or ended; nothing in between.

    Args:
        run: as Prefect's API describes it.
        deployment: its deployment's name.
        page: address of Prefect's page.
    """
    who = f"{deployment} ({run['name']})"
    state = run["state_type"]
    address = f"{page}/runs/flow-run/{run['id']}"
    if state == "RUNNING":
        return f"{who} has started: {address}"
    if state not in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED"):
        return ""
    line = f"{who} {state.lower()} after {timedelta(seconds=round(run['total_run_time']))}"
    if state == "COMPLETED":
        return line
    reason = " ".join(str(run["state"].get("message") or "no reason is known").split())[:MAX_REASON]
    # One that failed at once was never seen to run, so that its address was not told.
    return f"{line}: {reason} ({address})"
