"""`shoal model promote`: the model of a run becomes the champion of its name."""

from __future__ import annotations

import json
from dataclasses import asdict

from shoal.cli.console import say
from shoal.cli.options import FinishedRun, Json, Why


def promote(name: FinishedRun, why: Why = "", as_json: Json = False) -> None:
    """Make the model of a run the champion of its name in MLflow: approve a challenger of a night.

    MLflow and the run keep who did so and why; `shoal model rollback` takes it back.
    """
    from shoal.engine.settings import places
    from shoal.engine.store.run_folder import RunFolder
    from shoal.review.served.promotion import approve

    moved = approve(RunFolder.find(name, places.runs(), unfinished=False), why)
    if as_json:
        print(json.dumps(asdict(moved)))
    elif moved.move is None:
        say(f"models:/{moved.name}/{moved.version} of run {moved.run} is the champion already")
    else:
        say(f"models:/{moved.name}/{moved.version} of run {moved.run} is the champion")
        if moved.before is not None:
            say(f"before it was version {moved.before}; `shoal model rollback {moved.name}` returns to it")
