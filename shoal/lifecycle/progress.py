"""Progress: rounds, clients of the round, time left. On standard error, or below the cell of a notebook."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from shoal.data.prepared import Prepared
from shoal.engine.rounds.loop import Observer
from shoal.engine.settings import places
from shoal.engine.store.represent import PREFIX, prepare_set
from shoal.engine.store.run_events import Event, is_warning, warning_lines, words_of
from shoal.lifecycle.notebook_progress import KernelBar, in_kernel
from shoal.methods.scores.metrics import shown_in

COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TimeElapsedColumn(),
    TimeRemainingColumn(),
)
SHOWN = {metric.name for metric in shown_in("progress")}
"""Metrics of a round that stand beside its bar."""


def prepare_shown(name: str, *, force: bool = False, options: Mapping[str, int] | None = None) -> Prepared:
    """Prepare a data set of the store where needed, with a bar on standard error where that takes training.

    Raises:
        DataError: as `shoal.engine.store.represent.prepare_set`.
    """
    shown = steps_shown(f"RotNet of {name}") if name.startswith(PREFIX) else contextlib.nullcontext(None)
    with shown as watch:
        return prepare_set(name, places.store(), mirror=places.mirror(), force=force, options=options, watch=watch)


@contextlib.contextmanager
def steps_shown(label: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar for work in steps.

    Yields:
        A function to call with the steps done and the steps in all.
    """
    if in_kernel():
        yield KernelBar(label).step
        return
    with Progress(*COLUMNS, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(label, total=None, visible=False)
        yield lambda done, total: bars.update(task, completed=done, total=total, visible=True)


@contextlib.contextmanager
def progress(console: Console, label: str = "") -> Iterator[Observer]:
    """Show bars for rounds and clients during a run, warnings when they happen, and all warnings at the end.

    Yields:
        An observer for the engine.
    """
    if in_kernel():
        bar = KernelBar(label or "rounds")

        def follow(event: Event) -> None:
            bar.observe(event, metrics_shown(event), words_of(event) if is_warning(event) else None)

        yield follow
        return
    warned: list[Event] = []
    try:
        with bars_of_a_run(console, label, warned) as observe:
            yield observe
    finally:
        show_warnings(console, warning_lines(warned))


def show_warnings(console: Console, lines: Sequence[str]) -> None:
    """Print the warnings of a run below everything else."""
    if lines:
        console.print(f"[yellow]warnings[/] ({len(lines)}):", highlight=False)
    for line in lines:
        console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)


@contextlib.contextmanager
def bars_of_a_run(console: Console, label: str, warned: list[Event]) -> Iterator[Observer]:
    """Show bars for rounds and clients.

    Args:
        console: where they are drawn.
        label: what stands before them.
        warned: gets the events that are warnings.
    """
    columns = (*COLUMNS, TextColumn("{task.fields[note]}"))
    with Progress(*columns, console=console, transient=not console.is_terminal) as bars:
        rounds = bars.add_task(label or "rounds", total=None, note="")
        clients = bars.add_task("  clients", total=None, note="")

        def observe(event: Event) -> None:
            kind = event.kind
            if kind in ("started", "resumed"):
                bars.update(rounds, total=event.rounds, completed=event.round)
            elif kind == "round_started":
                bars.reset(clients, total=event.facts["clients"])
                bars.update(clients, description=f"  round {event.round}, clients")
            elif kind == "client_finished":
                bars.advance(clients)
            elif kind == "round_finished":
                note = " ".join(f"{name} {value:.3f}" for name, value in metrics_shown(event).items())
                bars.update(rounds, completed=event.round, note=note)
            if is_warning(event):
                warned.append(event)
                console.print("[yellow]warning[/]", Text(words_of(event)), soft_wrap=True)

        yield observe


def metrics_shown(event: Event) -> dict[str, float]:
    """Return the metrics of an event that stand beside the bar."""
    return {name: value for name, value in event.metrics.items() if name in SHOWN}
