"""Why MLflow does not have a run: the true reason, in one sentence that says what to do."""

from __future__ import annotations

import contextlib
import importlib.util
import re
from collections.abc import Iterator

from shoal.core.errors import ShoalError, brief
from shoal.engine.settings.addresses import masked
from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.run_folder import RunFolder

UNREACHABLE, INCOMPLETE = "mlflow_unreachable", "mlflow_incomplete"
"""Events of a run: MLflow did not answer; it answered, or could not be asked, and does not have all of the run."""

_NO_ANSWER = re.compile(
    r"API request to .* failed with exception|connection (refused|reset|aborted|timed out)|max retries exceeded|"
    r"timed? ?out|no route to|name or service not known|could not (connect|translate host name)|failed to resolve",
    re.IGNORECASE,
)


class TrackingError(ShoalError):
    """MLflow cannot take a run, for a reason that the user can mend."""


def check_installed() -> None:
    """Refuse where the package MLflow is missing; a folder of the name `mlflow` on Python's path is not the package.

    Raises:
        TrackingError: says how to install it.
    """
    try:
        spec = importlib.util.find_spec("mlflow")
    except ValueError:  # something that is no package stands in its place
        spec = None
    if spec is None or spec.origin is None:
        raise TrackingError(
            "the package mlflow is not installed here: `pip install mlflow`, or set tracking.mlflow to false"
        )


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what it came from, the newest first."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__


def is_no_answer(error: BaseException) -> bool:
    """Return whether an error says that a server did not answer."""
    return any(
        isinstance(each, ConnectionError | TimeoutError) or _NO_ANSWER.search(str(each)) for each in chain(error)
    )


def why_not_logged(error: BaseException, uri: str, settings: Settings) -> tuple[str, str]:
    """Return the kind of event and the sentence for an error that came while a run was logged.

    Args:
        error: the error.
        uri: MLflow's address without secrets.
        settings: of the run, whose address may hold a password that the error repeats.
    """
    first = (str(error).splitlines() or [""])[0] or type(error).__name__
    first = masked(first, settings.tracking.uri)[:300]
    if isinstance(error, ShoalError):
        return INCOMPLETE, f"MLflow at {uri} does not have all of the run: {masked(str(error), settings.tracking.uri)}"
    if is_no_answer(error):
        return UNREACHABLE, f"MLflow at {uri} did not answer ({first[:200]})"
    return INCOMPLETE, f"MLflow at {uri} did not take the run ({brief(Exception(first))})"


def tell_trouble(run: RunFolder, error: Exception, uri: str) -> None:
    """Say in the events of a run why MLflow does not have it, and what to do.

    Args:
        run: the run's folder.
        error: what was raised.
        uri: MLflow's address without secrets.
    """
    kind, why = why_not_logged(error, uri, run.settings())
    with contextlib.suppress(ShoalError):  # on a full disk nothing can be told
        run.event(kind, message=f"{why}; the run is not affected: once that is mended, `shoal log {run.name}` logs it")


def told_of_mlflow(run: RunFolder) -> bool:
    """Return whether the events of a run say, since it was started or resumed, that MLflow does not have it."""
    told = False
    for event in run.events():
        if event.kind in ("started", "resumed"):
            told = False
        elif event.kind in (UNREACHABLE, INCOMPLETE):
            told = True
    return told


def last_trouble(run: RunFolder) -> str:
    """Return what the newest event of a run says of MLflow; empty where none does."""
    told = [event.message for event in run.events() if event.kind in (UNREACHABLE, INCOMPLETE)]
    return told[-1] if told else ""


def check_experiment(name: str, lifecycle_stage: str, experiment_id: str) -> None:
    """Refuse an experiment that was deleted: MLflow keeps its name, and takes no run for it.

    Args:
        name: of the experiment.
        lifecycle_stage: as MLflow says it.
        experiment_id: by which it can be restored.

    Raises:
        TrackingError: says how to restore it.
    """
    if lifecycle_stage == "deleted":
        raise TrackingError(
            f"its experiment {name!r} was deleted: restore it on MLflow's page or with `mlflow experiments restore "
            f"--experiment-id {experiment_id}`, or give runs another one with tracking.experiment"
        )
