"""The last work on a run that is logged to MLflow: log it, then register its model.

Trouble with MLflow becomes an event of the run and never makes the run fail. Doing the work again changes nothing that
MLflow has.
"""

from __future__ import annotations

from shoal.engine.store.run_folder import RunFolder
from shoal.review.mlflow_log.model_registry import register
from shoal.review.mlflow_log.tracking import open_client, report_trouble, sync


def log_run(run: RunFolder) -> bool:
    """Bring MLflow up to date with a run whose rounds are done: tables, figures, report, checkpoints, final model.

    Returns:
        Whether MLflow has all of it now.
    """
    try:
        sync(run, run.settings())
    except Exception as error:  # whatever MLflow raises, the run is done
        report_trouble(run, error)
        return False
    return True


def register_model(run: RunFolder) -> str | None:
    """Register the model that a run has logged, and move the aliases of its name.

    Returns:
        Its version; None where the settings want none or MLflow has no model.
    """
    settings = run.settings()
    run_id = run.status().tracking.mlflow_run
    if run_id is None:
        return None
    try:
        return register(run, settings, open_client(settings), run_id)
    except Exception as error:
        report_trouble(run, error)
        return None
