"""The reason why MLflow does not have a run, in one sentence that says what to do."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator

from shoal.core.errors import ShoalError, short_text
from shoal.engine.settings.addresses import masked
from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.run_folder import RunFolder

UNREACHABLE = "mlflow_unreachable"
INCOMPLETE = "mlflow_incomplete"
"""Events of a run: MLflow did not answer; or it does not have all of the run for another reason."""

_NO_ANSWER = re.compile(
    r"API request to .* failed with exception|connection (refused|reset|aborted|timed out)|max retries exceeded|"
    r"timed? ?out|no route to|name or service not known|could not (connect|translate host name)|failed to resolve",
    re.IGNORECASE,
)


class TrackingError(ShoalError):
    """MLflow cannot log a run, for a reason that the user can correct."""


def check_installed() -> None:
    """Refuse to continue without the package MLflow; a folder named `mlflow` on Python's path is no package.

    Raises:
        TrackingError: says how to install it.
    """
    try:
        spec = importlib.util.find_spec("mlflow")
    except ValueError:  # another module has this name, and no spec
        spec = None
    if spec is None or spec.origin is None:
        raise TrackingError(
            "the package mlflow is not installed here: `pip install mlflow`, or set tracking.mlflow to false"
        )


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, the newest first."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__


def is_no_answer(error: BaseException) -> bool:
    """Return whether an error means that a server did not answer."""
    return any(
        isinstance(each, ConnectionError | TimeoutError) or _NO_ANSWER.search(str(each)) for each in chain(error)
    )


def reason_of(error: BaseException, settings: Settings) -> str:
    """Return what an error of MLflow says, in at most 200 characters and without the secrets of an address."""
    return short_text(Exception(masked(str(error) or type(error).__name__, settings.tracking.uri)))


def why_not_logged(error: BaseException, uri: str, settings: Settings) -> tuple[str, str]:
    """Return the kind of event and the sentence for an error in logging a run.

    Args:
        error: the error.
        uri: MLflow's address without secrets.
        settings: of the run; its address may hold a password that the error repeats.
    """
    if isinstance(error, ShoalError):
        return INCOMPLETE, f"MLflow at {uri} does not have all of the run: {masked(str(error), settings.tracking.uri)}"
    if is_no_answer(error):
        return UNREACHABLE, f"MLflow at {uri} did not answer ({reason_of(error, settings)})"
    return INCOMPLETE, f"MLflow at {uri} refused the run ({reason_of(error, settings)})"


def has_reported_trouble(run: RunFolder) -> bool:
    """Return whether the events of a run say, since it was started or resumed, that MLflow does not have it."""
    reported = False
    for event in run.events():
        if event.kind in ("started", "resumed"):
            reported = False
        elif event.kind in (UNREACHABLE, INCOMPLETE):
            reported = True
    return reported


def last_trouble(run: RunFolder) -> str:
    """Return the newest event's reason why MLflow does not have a run; empty where no event gives one."""
    reasons = [event.message for event in run.events() if event.kind in (UNREACHABLE, INCOMPLETE)]
    return "".join(reasons[-1:])


def check_experiment(name: str, lifecycle_stage: str, experiment_id: str) -> None:
    """Refuse an experiment that was deleted: MLflow keeps its name, and logs no run to it.

    Args:
        name: of the experiment.
        lifecycle_stage: in MLflow's words.
        experiment_id: for the command that restores it.

    Raises:
        TrackingError: says how to restore it.
    """
    if lifecycle_stage == "deleted":
        raise TrackingError(
            f"its experiment {name!r} was deleted: restore it on MLflow's page or with `mlflow experiments restore "
            f"--experiment-id {experiment_id}`, or choose another experiment with tracking.experiment"
        )
