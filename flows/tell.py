"""The flow that notifies the user; an automation of prefect.yaml starts it."""

from __future__ import annotations

from typing import Any

from prefect import flow

from shoal.lifecycle.notification import notify

NIGHT_FAILED = "a night failed"
"""The kind of event; the automation of prefect.yaml writes the same words."""


@flow(name="tell", flow_run_name="tell: {what}", retries=2, retry_delay_seconds=5)
def tell(message: str, what: str = "told") -> str:
    """Append a line to `runs/told.log`, unless it is there.

    Args:
        message: what happened.
        what: the kind of event.

    Returns:
        The line.

    Raises:
        TellError: the file cannot be written.
    """
    return notify(message, what)


def tell_failure(flow: Any, flow_run: Any, state: Any) -> None:
    """Write the line about a failed flow run at once, whether or not Prefect's server starts the automation."""
    kind = NIGHT_FAILED
    if flow.name != "nightly":
        kind = f"{flow.name} failed"
    notify(f"{flow_run.name} ({flow_run.id}): {state.message}", kind)
