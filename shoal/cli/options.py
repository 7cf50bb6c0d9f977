"""Options that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, get_type_hints

import typer

Json = Annotated[bool, typer.Option("--json", help="print only JSON on standard output")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="override a setting; repeatable")]
FinishedRun = Annotated[
    str, typer.Argument(metavar="RUN", help="a finished run: its folder, its name, or latest, the last finished one")
]
Why = Annotated[str, typer.Option(help="the reason; MLflow and the run keep it, with your name")]
OutFile = Annotated[Path | None, typer.Option("--out", help="file to write")]


def with_options(kind: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command, which takes `**options`, an option for each field of a dataclass; its description is the help."""
    hints = get_type_hints(kind)
    options = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=Annotated[hints[field.name], typer.Option(help=field.metadata["description"])],
        )
        for field in fields(kind)
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        *others, _ = signature.parameters.values()
        whole = signature.replace(parameters=[*others, *options])
        command.__signature__ = whole  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in whole.parameters.values()}
        return command

    return decorate
