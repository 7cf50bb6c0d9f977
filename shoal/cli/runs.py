"""`shoal runs` and `shoal open`: the runs that are there, and one of them to look at."""

from __future__ import annotations

import json
import webbrowser
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from shoal.core.errors import ShoalError
from shoal.engine.settings import places
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.status import FAILED, FINISHED, INTERRUPTED, RUNNING, STOPPED
from shoal.review.pages.report import write_report
from shoal.review.results.runs import UNREADABLE, ListedRun, bytes_of, listed_runs, remove_run
from shoal.review.results.views import report_is_whole

STATES = (RUNNING, FINISHED, INTERRUPTED, STOPPED, FAILED, UNREADABLE)


def runs_command(
    out: Console,
    method: str | None,
    data: str | None,
    states: Sequence[str],
    last: int | None,
    as_json: bool,
) -> None:
    """Show the runs, the newest first."""
    for state in states:
        if state not in STATES:
            raise ShoalError(f"no run is in state {state!r}: there are {', '.join(STATES)}")
    found = listed_runs(places.runs(), method=method, data=data, states=states)[:last]
    if as_json:
        print(json.dumps([run.to_json() for run in found]))
        return
    if not found:
        narrowed = method is not None or data is not None or states
        out.print(f"no {'such ' if narrowed else ''}run in {places.runs()}", highlight=False, soft_wrap=True)
        return
    private = any(run.epsilon for run in found)
    table = Table(
        "run", "method", "data", "state", "rounds", "score", "seconds", "MB", *(["epsilon, of set"] if private else [])
    )
    for column in table.columns[4:]:
        column.justify = "right"
    for run in found:
        about = (run.name, run.method, run.data, run.state, str(run.rounds), *numbers(run))
        table.add_row(*about, *([epsilon_of(run)] if private else []))
    out.print(table)
    for run in found:
        if run.state in (FAILED, UNREADABLE) and run.why:
            out.print(f"{run.name}: {run.why}", highlight=False, soft_wrap=True, markup=False)


def numbers(run: ListedRun) -> tuple[str, str, str]:
    """Score, seconds and megabytes of a run, for people."""
    score = "" if run.score is None else f"{run.score[0]} {run.score[1]:.3f}"
    return score, f"{run.seconds:.0f}", f"{run.bytes / 1e6:.1f}"


def epsilon_of(run: ListedRun) -> str:
    """Epsilon of a run's messages and of all private runs on its data set, for people; empty where none is private."""
    if run.epsilon is None:
        return ""
    own, whole = run.epsilon
    return f"{own:.3g}, {whole:.3g}" if whole is not None else f"{own:.3g}"


def remove_command(out: Console, err: Console, names: Sequence[str], *, sure: bool) -> None:
    """Remove runs; all of them are found before the first is removed.

    Raises:
        ShoalError: a folder lies elsewhere than the runs: whatever holds a settings file is no run. Nobody said yes.
    """
    found = list({run.path: run for run in (RunFolder.find(name, places.runs()) for name in names)}.values())
    for run in found:
        if run.path.parent != places.runs().resolve():
            raise ShoalError(f"{run.path} is no run of {places.runs()}: only those are removed")
    total = sum(bytes_of(run.path) for run in found)
    if not sure:
        for run in found:
            err.print(f"  {run.name}", highlight=False, soft_wrap=True)
        what = f"{len(found)} {'run' if len(found) == 1 else 'runs'}, {total / 1e6:.1f} MB"
        try:
            answer = err.input(f"remove {what}? \\[y/N] ")
        except EOFError:
            raise ShoalError("nothing was removed: nobody is there to ask, give --yes") from None
        if answer.strip().lower() not in ("y", "yes"):
            raise ShoalError("nothing was removed")
    for run in found:
        remove_run(run)
        out.print(f"removed {run.name}", highlight=False, soft_wrap=True)
    out.print("what MLflow has of them stays: it can be deleted on MLflow's page", highlight=False)


def open_command(out: Console, name: str, *, show: bool) -> None:
    """Print where a run's report is, made where it is missing, and open it in a browser."""
    run = RunFolder.find(name, places.runs())
    path = run.path / "report.html"
    if not report_is_whole(run):
        write_report(run)
    out.print(path.as_uri(), highlight=False, soft_wrap=True)
    if show and not webbrowser.open(path.as_uri()):
        out.print("no browser could be opened here: copy the address", highlight=False)
