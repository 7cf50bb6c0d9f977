"""`shoal advise`: which method for a set, from measurements, each sentence with the row of a table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.console import say, shoal_command
from shoal.cli.options import Json, Set
from shoal.core.errors import ShoalError

if TYPE_CHECKING:
    from shoal.studies.advice import Advice, Measured

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: shoal advise mine")
def advise(
    name: Annotated[str, typer.Argument(metavar="SET", help="a data set: shoal data list shows them")],
    overrides: Set = None,
    as_json: Json = False,
) -> None:
    """Say which method fits a data set, and why."""
    from shoal.engine.settings.run_settings import load_settings
    from shoal.studies.advice import advise as advice_for

    # Advice needs no number of clusters: where none is named it is left open.
    settings = load_settings(None, ["model.clusters=auto", *(overrides or ()), f"data.name={name}"])
    if not settings.chooses_method:
        raise ShoalError("advice is about the method: give no --set method.name")
    advice = advice_for(settings)
    if as_json:
        print(json.dumps(advice.to_json()))
        return
    show(advice)


def show(advice: Advice) -> None:
    """Print what was measured, the advice, and the command that follows it."""
    for line in described(advice.measured):
        say(line)
    say("")
    for sentence in advice.sentences:
        say(f"- {sentence.text}")
        if sentence.row:
            say(f"    {sentence.row}")
    say("")
    say(f"run: {advice.command.replace('shoal', shoal_command(), 1)}")
    say("more: docs/which_method.md")


def described(measured: Measured) -> list[str]:
    """Return what was measured, a line each."""
    shape = " x ".join(str(size) for size in measured.shape)
    sizes = f"{measured.smallest:,} to {measured.largest:,} each (median {measured.median:,})"
    if measured.smallest == measured.largest:
        sizes = f"{measured.smallest:,} each"
    lines = [
        f"{measured.name}: {measured.samples:,} samples of kind {measured.kind} ({shape}) at {measured.clients:,} "
        f"clients, {sizes}"
    ]
    if measured.classes is None:
        lines.append("no labels")
    else:
        lines.append(
            f"{measured.classes} classes, the largest {measured.ratio:g} times the smallest; skew of clients "
            f"{measured.skew:.2f} (0: all alike, 1: no class in common)"
        )
    lines.append("a GPU is here" if measured.gpu else "no GPU is here")
    return lines
