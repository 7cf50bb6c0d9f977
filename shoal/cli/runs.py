"""`shoal runs`: list runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.console import frame_table, out, say
from shoal.cli.options import Json
from shoal.core.errors import ShoalError

if TYPE_CHECKING:
    import pandas as pd


app = typer.Typer(add_completion=False)
WIDE = 120
"""From so many columns on, a terminal shows runs with all that is known of them."""
STATES = ("running", "finished", "interrupted", "failed", "unreadable", "site")


@app.command(epilog="Example: shoal runs --method fedpnp --state finished")
def runs(
    method: Annotated[str | None, typer.Option(help="only runs of this method")] = None,
    data: Annotated[str | None, typer.Option(help="only runs on this data set")] = None,
    states: Annotated[
        list[str] | None, typer.Option("--state", help=f"only runs in this state: {', '.join(STATES)}; repeatable")
    ] = None,
    last: Annotated[int | None, typer.Option(min=1, help="only so many runs, the newest")] = None,
    as_json: Json = False,
) -> None:
    """List runs, the newest first."""
    from shoal.api.listing import runs as list_runs
    from shoal.engine.settings import places

    for state in states or ():
        if state not in STATES:
            raise ShoalError(f"no run is in state {state!r}: expected one of {', '.join(STATES)}")
    table = list_runs(method=method, data=data, state=states or (), last=last).reset_index()
    if as_json:
        print(table.to_json(orient="records"))
    elif len(table):
        show_runs(table)
    else:
        filtered = method is not None or data is not None or states
        say(f"no {'such ' if filtered else ''}run in {places.runs()}")


def show_runs(found: pd.DataFrame) -> None:
    """Print runs as a table, and below it why runs failed or cannot be read."""
    from shoal.engine.store.status import FAILED
    from shoal.review.results.runs import UNREADABLE

    table = found.drop(columns="why").assign(seconds=found["seconds"].round().astype(int))
    if out.width < WIDE:  # a run's name has its method and its data
        table = table.drop(columns=["method", "data", "metric", "seconds"])
    out.print(frame_table(table.rename(columns={"name": "run"}).dropna(axis="columns", how="all")))
    for run in found[found["state"].isin([FAILED, UNREADABLE]) & (found["why"] != "")].itertuples():
        say(f"{run.name}: {run.why}")
