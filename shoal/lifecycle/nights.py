"""The runs of a night: which settings it accepts, which champion is in use, which run was judged."""

from __future__ import annotations

from contextlib import suppress

from shoal.core.errors import ShoalError
from shoal.engine.settings import places
from shoal.engine.settings.run_settings import Settings, resolve
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.run_order import in_order
from shoal.lifecycle.claim import is_done
from shoal.lifecycle.starting import runs_with
from shoal.lifecycle.taking_in import NightError
from shoal.methods.registry import METHODS
from shoal.review.mlflow_log.model_registry import registered_name
from shoal.review.results.stable_names import NIGHT
from shoal.review.served.promotion import champion_with_version, decision_of


def check_settings(settings: Settings) -> None:
    """Refuse settings with which a night could not name or judge its model.

    Raises:
        NightError: the model would have no name, or no samples or clusters to judge it by.
    """
    tracking = settings.tracking
    if not (tracking.mlflow and tracking.model) or registered_name(settings) is None:
        raise NightError(
            "a night names its champion in MLflow's registry: set tracking.mlflow and tracking.model to true, and "
            "tracking.register_as to a name or auto"
        )
    if settings.chooses_method:
        return
    method = METHODS[settings.method.name]
    if method.learns_from_labels:
        raise NightError(
            f"a night judges clusters of samples, and method {settings.method.name} learns from labels: choose a "
            "method that clusters"
        )
    if settings.workers.runner == "sites" and settings.privacy.secret and method.totals:
        raise NightError(
            "a night judges two models, and noise covers all that sites tell of rows: schedule the deployment "
            "`on-demand`"
        )


def earlier_method(settings: Settings) -> Settings:
    """Return settings that leave the method open with the method that an earlier night of the data set chose.

    The nights of a data set keep their method, so that each can train from the champion of the one before.
    """
    if not settings.chooses_method:
        return settings
    for path in reversed(in_order(places.runs(), f"*_{settings.data.name}_*")):
        run = RunFolder(path.parent)
        with suppress(ShoalError):  # a damaged run chose nothing
            choice = run.lineage().method_chosen
            same = run.settings().data.name == settings.data.name  # names of sets may hold "_"
            if choice is not None and same and any(event.kind == NIGHT for event in run.events()):
                return resolve(settings, method=choice.settings)
    return settings


def champion_in_use(settings: Settings) -> RunFolder | None:
    """Return the run of the champion; None where no champion was judged yet, or the method is not chosen yet.

    MLflow names the first model of a name champion as soon as it is logged. Where that night was cut short before the
    model was judged, the next night resumes it as one that has no champion.
    """
    if settings.chooses_method:
        return None
    return judged_champion(champion_with_version(settings, places.runs())[0])


def judged_champion(champion: RunFolder | None) -> RunFolder | None:
    """Return the champion unless its night was cut short before it was judged."""
    if champion is None or (decision_of(champion) is None and not is_done(champion)):
        return None
    return champion


def judged_run(settings: Settings, data: str) -> RunFolder | None:
    """Return the newest run of these settings that was judged on a version of the data set; None where there is none.

    Args:
        settings: of the training.
        data: digest of the data set.
    """
    for run in runs_with(settings):
        if run.lineage().data.digest == data and decision_of(run) is not None:
            return run
    return None
