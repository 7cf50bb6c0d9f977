"""Progress: rounds, clients of the round, time left. On standard error, or below the cell of a notebook."""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from shoal.engine.store.run_events import Event, Observer, is_warning, warning_lines
from shoal.methods.scores.metrics import shown_in

COLUMNS = (
    # On a narrow terminal the texts take several lines, and the numbers stay whole.
    TextColumn("{task.description}", table_column=Column()),
    BarColumn(bar_width=16),
    MofNCompleteColumn(),
    TimeElapsedColumn(),
    TimeRemainingColumn(),
)
SECONDS_BETWEEN_LINES = 10
"""Time between two lines of progress in a file or a pipe."""
SHOWN = {metric.name for metric in shown_in("progress")}
"""Metrics of a round that stand beside its bar."""


@contextlib.contextmanager
def step_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar for work in steps.

    Yields:
        A function to call with the steps done and the steps in all.
    """
    if in_kernel():
        with notebook_bar(label) as bar:

            def step(done: int, total: int) -> None:
                bar.total = total
                bar.update(done - bar.n)

            yield step
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done, total: None
        return
    with Progress(*COLUMNS, console=console, transient=True) as bars:
        task = bars.add_task(label, total=None, visible=False)
        yield lambda done, total: bars.update(task, completed=done, total=total, visible=True)


@contextlib.contextmanager
def progress(console: Console, label: str = "") -> Iterator[Observer]:
    """Show bars for rounds and clients during a run, warnings when they happen, and all warnings at the end.

    Yields:
        An observer for the engine.
    """
    warned: list[Event] = []
    show = bars_of_a_run
    if in_kernel():
        show = notebook_bar_of_a_run
    elif not console.is_terminal:
        show = lines_of_a_run
    try:
        with show(console, label, warned) as observe:
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
    columns = (*COLUMNS, TextColumn("{task.fields[note]}", table_column=Column()))
    with Progress(*columns, console=console) as bars:
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
                bars.update(rounds, completed=event.round, note=in_words(metrics_shown(event)))
            show_if_warning(console, event, warned)

        yield observe


def in_kernel() -> bool:
    """Return whether this process is a notebook's kernel (IPython that shows more than text)."""
    shell = sys.modules.get("IPython")
    if shell is None or not hasattr(shell, "get_ipython"):
        return False
    return getattr(shell.get_ipython(), "kernel", None) is not None


def notebook_bar(label: str) -> Any:
    """Return a bar below a notebook's cell: a widget where the notebook has them, else text."""
    with warnings.catch_warnings():  # that there are no widgets
        warnings.simplefilter("ignore")
        from tqdm.auto import tqdm

        return tqdm(desc=label)


@contextlib.contextmanager
def notebook_bar_of_a_run(console: Console, label: str, warned: list[Event]) -> Iterator[Observer]:
    """Show a bar for rounds below a notebook's cell; arguments are those of `bars_of_a_run`."""
    with notebook_bar(label or "rounds") as bar:

        def observe(event: Event) -> None:
            if event.kind in ("started", "resumed"):
                bar.reset(event.rounds)
                bar.update(event.round)
            elif event.kind == "round_finished":
                bar.set_postfix_str(in_words(metrics_shown(event)), refresh=False)
                bar.update(event.round - bar.n)
            show_if_warning(console, event, warned)

        yield observe


@contextlib.contextmanager
def lines_of_a_run(console: Console, label: str, warned: list[Event]) -> Iterator[Observer]:
    """Print a line for a round now and then, for a file or a pipe, where bars cannot be drawn.

    Args:
        console: where they are printed.
        label: what stands before them.
        warned: gets the events that are warnings.
    """
    rounds: int | None = None
    due = 0.0

    def observe(event: Event) -> None:
        nonlocal rounds, due
        if event.kind in ("started", "resumed"):
            rounds = event.rounds
        elif event.kind == "round_finished" and (time.monotonic() >= due or event.round == rounds):
            due = time.monotonic() + SECONDS_BETWEEN_LINES
            console.print(Text(round_line(label, event, rounds)), soft_wrap=True)
        show_if_warning(console, event, warned)

    yield observe


def round_line(label: str, event: Event, rounds: int | None) -> str:
    """Return the line about a finished round.

    Args:
        label: what stands before it; may be empty.
        event: the end of the round.
        rounds: of the run, where they are known.
    """
    words = f"round {event.round}"
    if rounds is not None:
        words += f" of {rounds}"
    if label:
        words = f"{label}: {words}"
    return f"{words} {in_words(metrics_shown(event))}".rstrip()


def show_if_warning(console: Console, event: Event, warned: list[Event]) -> None:
    """Print an event that is a warning, and add it to those so far."""
    if is_warning(event):
        warned.append(event)
        console.print("[yellow]warning[/]", Text(event.message or event.kind), soft_wrap=True)


def in_words(metrics: Mapping[str, float]) -> str:
    """Return metrics on one line.

    >>> in_words({"acc": 0.98765, "loss": 1.5})
    'acc 0.988 loss 1.500'
    """
    return " ".join(f"{name} {value:.3f}" for name, value in metrics.items())


def metrics_shown(event: Event) -> dict[str, float]:
    """Return the metrics of an event that stand beside the bar."""
    return {name: value for name, value in event.metrics.items() if name in SHOWN}
