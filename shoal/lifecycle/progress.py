"""Progress: rounds, clients of the round, time left. On standard error, or below the cell of a notebook."""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from shoal.engine.store.run_events import Event, Observer, is_warning
from shoal.methods.scores.metrics import shown_in

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
    with bar(label, Console(stderr=True)) as steps:

        def step(done: int, total: int) -> None:
            steps.total = total
            steps.update(done - steps.n)

        yield step


@contextlib.contextmanager
def progress(console: Console, label: str = "") -> Iterator[Observer]:
    """Show bars for rounds and clients during a run, or now and then a line, and warnings when they happen.

    Args:
        console: for warnings and lines.
        label: what stands before the rounds.

    Yields:
        An observer for the engine.
    """
    if label and has_bars(console):  # above the bars: beside them it would leave no room for the numbers
        console.print(Text(label), soft_wrap=True)
    with bar("rounds", console, leave=True) as rounds, bar("clients", console) as clients:
        line = lines_of_a_run(console, label)

        def observe(event: Event) -> None:
            if has_bars(console):
                move_bars(rounds, clients, event)
            else:
                line(event)
            if is_warning(event):
                with type(rounds).external_write_mode(sys.stderr):
                    console.print("[yellow]warning[/]", Text(event.message or event.kind), soft_wrap=True)

        yield observe


def has_bars(console: Console) -> bool:
    """Return whether bars can be shown."""
    return console.is_jupyter or console.is_terminal


def bar(label: str, console: Console, *, leave: bool = False) -> Any:
    """Return a bar: in a terminal, or below a notebook's cell a widget where the notebook has them; elsewhere none.

    Args:
        label: what stands before it.
        console: whether there is a terminal.
        leave: whether it stays once it is done.
    """
    with warnings.catch_warnings():  # that there are no widgets
        warnings.simplefilter("ignore")
        from tqdm.auto import tqdm

        return tqdm(desc=label, leave=leave, dynamic_ncols=True, disable=not has_bars(console))


def move_bars(rounds: Any, clients: Any, event: Event) -> None:
    """Show an event on the bars of rounds and clients."""
    if event.kind in ("started", "resumed"):
        rounds.reset(event.rounds)
        rounds.update(event.round)
    elif event.kind == "round_started":
        clients.set_description_str(f"round {event.round}, clients", refresh=False)
        clients.reset(event.facts["clients"])
    elif event.kind == "client_finished":
        clients.update()
    elif event.kind == "round_finished":
        rounds.set_postfix_str(metrics_in_words(event), refresh=False)
        rounds.update(event.round - rounds.n)


def lines_of_a_run(console: Console, label: str) -> Observer:
    """Return an observer that prints a line for a round now and then, for a file or a pipe."""
    rounds: int | None = None
    due = 0.0

    def observe(event: Event) -> None:
        nonlocal rounds, due
        if event.kind in ("started", "resumed"):
            rounds = event.rounds
        elif event.kind == "round_finished" and (time.monotonic() >= due or event.round == rounds):
            due = time.monotonic() + SECONDS_BETWEEN_LINES
            words = f"round {event.round}" if rounds is None else f"round {event.round} of {rounds}"
            before = f"{label}: " if label else ""
            console.print(Text(f"{before}{words} {metrics_in_words(event)}".rstrip()), soft_wrap=True)

    return observe


def metrics_in_words(event: Event) -> str:
    """Return the metrics of an event that stand beside the bar, such as "acc 0.988 loss 1.500"."""
    return " ".join(f"{name} {value:.3f}" for name, value in event.metrics.items() if name in SHOWN)
