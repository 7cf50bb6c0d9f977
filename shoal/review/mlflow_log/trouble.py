"""The reason why MLflow does not have a run, in one sentence that says what to do."""

from __future__ import annotations

import importlib.util

from shoal.core.errors import ShoalError, short_text
from shoal.engine.settings.addresses import masked
from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.run_folder import RunFolder

INCOMPLETE = "mlflow_incomplete"
"""Event of a run: MLflow does not have all of it."""


class TrackingError(ShoalError):
    """MLflow cannot log a run, for a reason that the user can correct."""


def check_installed() -> None:
    """Refuse to continue without the package MLflow; a folder named `mlflow` on Python's path is no package.

    Raises:
        TrackingError: says how to install it.
    """
    spec = importlib.util.find_spec("mlflow")
    if spec is None or spec.origin is None:
        raise TrackingError(
            "the package mlflow is not installed here: `pip install mlflow`, or set tracking.mlflow to false"
        )


def reason_of(error: Exception, settings: Settings) -> str:
    """Return what an error says, without the secrets of an address, and of MLflow's errors at most 200 characters."""
    reason = masked(str(error) or type(error).__name__, settings.tracking.uri)
    if isinstance(error, ShoalError):
        return reason
    return short_text(Exception(reason))


def has_reported_trouble(run: RunFolder) -> bool:
    """Return whether the events of a run say, since it was started or resumed, that MLflow does not have it."""
    kinds = [event.kind for event in run.events()]
    begun = max((place for place, kind in enumerate(kinds) if kind in ("started", "resumed")), default=0)
    # MLflow is asked beside the run's start, and may have failed just before that is noted.
    return INCOMPLETE in kinds[max(0, begun - 1) :]
