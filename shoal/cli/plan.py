"""`shoal run --dry-run`: what a run would do, its bytes and its time."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shoal.core.errors import ShoalError
from shoal.engine.settings.run_settings import Settings
from shoal.lifecycle.rehearsal import Plan, rehearse
from shoal.review.results.summary import duration, size


def plan_command(out: Console, settings: Settings | None, partition: Path | None, as_json: bool) -> None:
    """Show the plan of a new run.

    Raises:
        ShoalError: the run is one to go on with.
    """
    if settings is None:
        raise ShoalError("--dry-run plans a new run: give no --resume")
    plan = rehearse(settings, partition)
    if as_json:
        print(json.dumps(plan.to_json()))
        return
    out.print(plan_table(plan))
    if plan.measured is None:
        out.print(f"time and bytes are not known: {plan.why}", highlight=False, soft_wrap=True, markup=False)
        return
    said = "time and bytes from two rounds of one client here, now; the last evaluation, figures and MLflow come on top"
    out.print(said, highlight=False, soft_wrap=True)


def plan_table(plan: Plan) -> Table:
    """The plan, a line each."""
    least, median, most = plan.samples
    table = Table("what", "value", title="what the run would do")
    table.add_row("method", plan.method)
    table.add_row("data", plan.data)
    table.add_row("clients", f"{plan.clients:,}, of {least:,} to {most:,} training samples (median {median:,})")
    if plan.left_out:
        table.add_row("left out", Text(plan.left_out))
    table.add_row("rounds", f"{plan.rounds:,}, of {plan.a_round:,} clients each")
    if plan.choice is not None:
        low, high = plan.choice
        table.add_row("clusters", f"chosen among {low} to {high} before the run, which comes on top; here {high}")
    table.add_row("workers", f"{plan.slots} on {plan.device}")
    if plan.bytes is not None and plan.seconds is not None:
        for way, name in (("up", "to the server"), ("down", "from the server"), ("d2d", "between clients")):
            table.add_row(f"bytes {name}", f"about {size(plan.bytes[way])}")
        table.add_row("time", f"about {duration(plan.seconds)}")
    return table
