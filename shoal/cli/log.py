"""`shoal log`: finished runs into MLflow again, such as into the store of a team."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.console import out
from shoal.core.errors import ShoalError

if TYPE_CHECKING:
    from shoal.engine.store.run_folder import RunFolder


def log(
    names: Annotated[list[str] | None, typer.Argument(metavar="RUN...", help="runs: folder, name, or latest")] = None,
    every: Annotated[bool, typer.Option("--all", help="every finished run, the oldest first")] = False,
) -> None:
    """Bring MLflow up to date with finished runs: after it was away, or in the new store of MLFLOW_TRACKING_URI.

    What MLflow has already stays as it is. A run that is not finished is gone on with by `shoal run --resume`, which
    logs it too.
    """
    from shoal.engine.settings import places
    from shoal.engine.store.codec import StoreError
    from shoal.engine.store.run_folder import RunError, RunFolder
    from shoal.engine.store.status import FINISHED
    from shoal.review.results.runs import UNREADABLE, listed_runs

    if bool(names) == every:
        raise ShoalError("which runs? name them, or give --all for every finished one")
    # Those that cannot be read are named too: they may be finished.
    wanted = names or [run.name for run in reversed(listed_runs(places.runs(), states=(FINISHED, UNREADABLE)))]
    missing = []
    for run in [RunFolder.find(name, places.runs()) for name in wanted]:
        try:
            said, logged = log_one(run)
        except (StoreError, RunError) as error:
            said, logged = f"not logged: {error}", False
        if not logged:
            missing.append(run.name)
        out.print(f"{run.name}: {said}", highlight=False, soft_wrap=True, markup=False)
    if missing:
        raise ShoalError(f"MLflow does not have {len(missing)} of them: the same command again logs what is missing")


def log_one(run: RunFolder) -> tuple[str, bool]:
    """Log one run.

    Args:
        run: the run's folder.

    Returns:
        What became of it, in words, and False where MLflow lacks something that it should have.

    Raises:
        StoreError, RunError: a file of the run is damaged.
    """
    from shoal.engine.settings import places
    from shoal.engine.store.status import FINISHED
    from shoal.review.mlflow_log.tracking import shown_uri
    from shoal.review.mlflow_log.trouble import last_trouble
    from shoal.review.mlflow_log.whole_run import check_whole
    from shoal.review.served.record import LogRun, PromoteModel

    settings = run.settings()
    if run.status().state != FINISHED:
        return "not finished: `shoal run --resume` goes on with it", True
    if not settings.tracking.mlflow:
        return "not logged: its setting tracking.mlflow is false", True
    check_whole(run)
    with run.locked():
        logged = LogRun(run.path).execute()
        version = PromoteModel(run.path).execute() if logged else None
    if not logged:
        return f"not logged: {last_trouble(run)}", False
    named = f", version {version} of its model" if version else ""
    return f"logged to {shown_uri(settings, places.mlflow_store())}{named}", True
