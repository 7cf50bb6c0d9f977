"""Progress on the terminal: rounds, clients of the round, time left. Everything goes to standard error."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from data.prepared import Prepared
from engine import places
from engine.represent import PREFIX, prepare_set
from engine.rounds import Observer
from methods.scores.metrics import shown_in

COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TimeElapsedColumn(),
    TimeRemainingColumn(),
)
SHOWN = {metric.name for metric in shown_in("progress")}
"""Metrics of a round that stand beside its bar."""
WARNINGS = (
    "client_failed",
    "client_left_out",
    "client_refused",
    "client_quarantined",
    "slot_lost",
    "cohort_reissued",
    "checkpoint_unreadable",
    "mlflow_unreachable",
)


def prepare_shown(name: str, *, force: bool = False, options: Mapping[str, int] | None = None) -> Prepared:
    """A data set of the store, prepared where it is not yet, with a bar on standard error where that takes training.

    Raises:
        DataError: as `engine.represent.prepare_set`.
    """
    with Progress(*COLUMNS, console=Console(stderr=True), transient=True, disable=not name.startswith(PREFIX)) as bars:
        task = bars.add_task(f"RotNet of {name}", total=None, visible=False)
        return prepare_set(
            name,
            places.store(),
            mirror=places.mirror(),
            force=force,
            options=options,
            watch=lambda done, total: bars.update(task, completed=done, total=total, visible=True),
        )


@contextlib.contextmanager
def progress(console: Console, label: str = "") -> Iterator[Observer]:
    """Bars for rounds and clients while a run goes on.

    Yields:
        An observer for the engine.
    """
    columns = (*COLUMNS, TextColumn("{task.fields[note]}"))
    with Progress(*columns, console=console, transient=not console.is_terminal) as bars:
        rounds = bars.add_task(label or "rounds", total=None, note="")
        clients = bars.add_task("  clients", total=None, note="")

        def observe(event: dict[str, Any]) -> None:
            kind = event["event"]
            if kind in ("started", "resumed"):
                bars.update(rounds, total=event["rounds"], completed=event["round"])
            elif kind == "round_started":
                bars.reset(clients, total=event["clients"])
                bars.update(clients, description=f"  round {event['round']}, clients")
            elif kind == "client_finished":
                bars.advance(clients)
            elif kind == "round_finished":
                shown = {k: v for k, v in event["metrics"].items() if k in SHOWN}
                bars.update(rounds, completed=event["round"], note=" ".join(f"{k} {v:.3f}" for k, v in shown.items()))
            if kind in WARNINGS:
                console.print(f"[yellow]warning[/] {event.get('message', kind)}", highlight=False)

        yield observe
