"""`shoal model log`: log finished runs to MLflow again, for example to the store of a team."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.console import say
from shoal.core.errors import ShoalError

if TYPE_CHECKING:
    from shoal.engine.store.run_folder import RunFolder


def log(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN...", help="runs: their folders, their names, or latest, the last finished one"),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="every finished run, the oldest first")] = False,
) -> None:
    """Log finished runs to MLflow again: after it was out of reach, or to the new store of MLFLOW_TRACKING_URI.

    MLflow keeps what it already has. `shoal run --resume` finishes an unfinished run, and logs it.
    """
    from shoal.engine.settings import places
    from shoal.engine.store.run_folder import RunFolder
    from shoal.engine.store.status import FINISHED
    from shoal.review.results.runs import UNREADABLE, listed_runs

    if bool(names) == every:
        raise ShoalError("no run is named: name runs, or give --all for every finished run")
    # Unreadable runs are named too: they may be finished.
    wanted = names or [run.name for run in reversed(listed_runs(places.runs(), states=(FINISHED, UNREADABLE)))]
    missing = []
    for run in [RunFolder.find(name, places.runs(), unfinished=False) for name in wanted]:
        try:
            outcome = log_one(run)
        except ShoalError as error:
            outcome = f"not logged: {error}"
            missing.append(run.name)
        say(f"{run.name}: {outcome}")
    if missing:
        raise ShoalError(f"MLflow lacks {len(missing)} of them: the same command logs what is missing")


def log_one(run: RunFolder) -> str:
    """Log one run, and return what became of it, in words.

    Raises:
        ShoalError: a file of the run is damaged, or MLflow lacks something of the run.
    """
    from shoal.engine.store.status import FINISHED
    from shoal.review.mlflow_log.tracking import shown_uri, sync
    from shoal.review.mlflow_log.trouble import reason_of
    from shoal.review.mlflow_log.whole_run import check_whole
    from shoal.review.served.record import register_model

    settings = run.settings()
    if run.status().state != FINISHED:
        return "not finished: resume it with `shoal run --resume`"
    if not settings.tracking.mlflow:
        return "not logged: its setting tracking.mlflow is false"
    check_whole(run)
    with run.locked():
        try:
            sync(run, settings)
        except Exception as error:  # whatever MLflow raises
            raise ShoalError(f"MLflow at {shown_uri(settings)}: {reason_of(error, settings)}") from error
        version = register_model(run)
    named = ""
    if version:
        named = f", version {version} of its model"
    return f"logged to {shown_uri(settings)}{named}"
