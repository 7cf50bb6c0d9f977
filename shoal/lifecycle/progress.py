"""Progress: rounds, clients of the round, time left. On standard error, or below the cell of a notebook."""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
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
    if not (in_kernel() or sys.stderr.isatty()):
        yield lambda done, total: None
        return
    with bar(label) as steps:

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
    shown: contextlib.AbstractContextManager[Observer] = contextlib.nullcontext(lines_of_a_run(console, label))
    if in_kernel() or console.is_terminal:
        if label:  # above the bars: beside them it would leave no room for the numbers
            console.print(Text(label), soft_wrap=True)
        shown = bars_of_a_run()
    with shown as show:

        def observe(event: Event) -> None:
            show(event)
            if is_warning(event):
                with no_bars():
                    console.print("[yellow]warning[/]", Text(event.message or event.kind), soft_wrap=True)

        yield observe


def in_kernel() -> bool:
    """Return whether this process is a notebook's kernel (IPython that shows more than text)."""
    shell = sys.modules.get("IPython")
    if shell is None or not hasattr(shell, "get_ipython"):
        return False
    return getattr(shell.get_ipython(), "kernel", None) is not None


def bar(label: str, *, leave: bool = False) -> Any:
    """Return a bar: in a terminal, or below a notebook's cell a widget where the notebook has them, else text.

    Args:
        label: what stands before it.
        leave: whether it stays once it is done.
    """
    with warnings.catch_warnings():  # that there are no widgets
        warnings.simplefilter("ignore")
        from tqdm.auto import tqdm

        return tqdm(desc=label, leave=leave, dynamic_ncols=True)


def no_bars() -> contextlib.AbstractContextManager[None]:
    """Take the bars away until the end of the block, for something else to be printed."""
    from tqdm import tqdm

    taken: contextlib.AbstractContextManager[None] = tqdm.external_write_mode(sys.stderr)
    return taken


@contextlib.contextmanager
def bars_of_a_run() -> Iterator[Observer]:
    """Show bars for rounds and clients."""
    with bar("rounds", leave=True) as rounds, bar("clients") as clients:

        def observe(event: Event) -> None:
            if event.kind in ("started", "resumed"):
                rounds.reset(event.rounds)
                rounds.update(event.round)
            elif event.kind == "round_started":
                clients.set_description_str(f"round {event.round}, clients", refresh=False)
                clients.reset(event.facts["clients"])
            elif event.kind == "client_finished":
                clients.update()
            elif event.kind == "round_finished":
                rounds.set_postfix_str(in_words(metrics_shown(event)), refresh=False)
                rounds.update(event.round - rounds.n)

        yield observe


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
            line = f"{before}{words} {in_words(metrics_shown(event))}"
            console.print(Text(line.rstrip()), soft_wrap=True)

    return observe


def in_words(metrics: Mapping[str, float]) -> str:
    """Return metrics on one line.

    >>> in_words({"acc": 0.98765, "loss": 1.5})
    'acc 0.988 loss 1.500'
    """
    return " ".join(f"{name} {value:.3f}" for name, value in metrics.items())


def metrics_shown(event: Event) -> dict[str, float]:
    """Return the metrics of an event that stand beside the bar."""
    return {name: value for name, value in event.metrics.items() if name in SHOWN}
