"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="print only JSON on standard output")]
Round = Annotated[int | None, typer.Option(min=1, help="use the state after this round; by default the last")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="override a setting; repeatable")]
FinishedRun = Annotated[
    str, typer.Argument(metavar="RUN", help="a finished run: its folder, its name, or latest, the last finished one")
]
AnyRun = Annotated[bool, typer.Option("--any", help="latest may also be a run that is not finished")]
Why = Annotated[str, typer.Option(help="the reason; MLflow and the run keep it, with your name")]
OutFile = Annotated[Path | None, typer.Option("--out", help="file to write")]
