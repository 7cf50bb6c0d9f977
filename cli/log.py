"""`shoal log`: finished runs into MLflow again, such as into the store of a team."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.console import out
from core.errors import ShoalError


def log(
    names: Annotated[list[str] | None, typer.Argument(metavar="RUN...", help="runs: folder, name, or latest")] = None,
    every: Annotated[bool, typer.Option("--all", help="every finished run, the oldest first")] = False,
) -> None:
    """Bring MLflow up to date with finished runs: after it was away, or in the new store of MLFLOW_TRACKING_URI.

    What MLflow has already stays as it is. A run that is not finished is gone on with by `shoal run --resume`, which
    logs it too.
    """
    from engine import places
    from engine.run_folder import FINISHED, RunFolder
    from review.record import LogRun, PromoteModel
    from review.runs import listed_runs
    from review.tracking import shown_uri

    if bool(names) == every:
        raise ShoalError("which runs? name them, or give --all for every finished one")
    wanted = names or [run.name for run in reversed(listed_runs(places.runs(), states=(FINISHED,)))]
    missing = []
    for run in [RunFolder.find(name, places.runs()) for name in wanted]:
        settings = run.settings()
        where = shown_uri(settings, places.mlflow_store())
        if run.status()["state"] != FINISHED:
            said = "not finished: `shoal run --resume` goes on with it"
        elif not settings.tracking.mlflow:
            said = "not logged: its setting tracking.mlflow is false"
        else:
            with run.locked():
                logged = LogRun(run.path).carry_out()
                version = PromoteModel(run.path).carry_out() if logged else None
            said = f"logged to {where}{f', version {version} of its model' if version else ''}"
            if not logged:
                missing.append(run.name)
                said = f"not logged: {where} did not answer (events.jsonl of the run says why)"
        out.print(f"{run.name}: {said}", highlight=False, soft_wrap=True, markup=False)
    if missing:
        raise ShoalError(f"MLflow does not have {len(missing)} of them: the same command again logs what is missing")
