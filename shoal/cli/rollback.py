"""`shoal model rollback`: the champion before the present one is the champion again."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from shoal.cli.console import say
from shoal.cli.options import Json, Why


def rollback(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="a model in MLflow, or a run of it; by default the only one"),
    ] = None,
    why: Why = "",
    as_json: Json = False,
) -> None:
    """Make the champion before the present one the champion again.

    Promotions, approvals and changes on MLflow's page are taken back one by one; MLflow keeps who did so and why.
    """
    from shoal.engine.settings import places
    from shoal.review.served.promotion import roll_back

    moved = roll_back(name, places.runs(), why)
    if as_json:
        print(json.dumps(asdict(moved)))
        return
    say(f"models:/{moved.name}/{moved.version} of run {moved.run} is the champion again")
    say(f"before it was version {moved.before}; `shoal model promote RUN` brings back the model of a run")
