"""Where a run is shown in MLflow's page."""

from __future__ import annotations

import contextlib
import os

from shoal.engine.settings import places
from shoal.engine.settings.addresses import without_user
from shoal.engine.store.run_folder import RunFolder
from shoal.review.mlflow_log.embedded_store import is_kept_uri
from shoal.review.mlflow_log.tracking import shown_uri, tracking_uri


def mlflow_page(folder: RunFolder) -> str | None:
    """The address of a run in MLflow's page.

    Returns:
        None where the run is not in MLflow, or no page over its store is known.
    """
    about = folder.lineage()
    settings = folder.settings()
    run_id = about.mlflow_run
    if not about.mlflow_uri or not run_id:
        return None
    store = tracking_uri(settings, places.mlflow_store())
    if not is_kept_uri(about.mlflow_uri, shown_uri(settings, places.mlflow_store()), places.mlflow_store()):
        return None  # it is logged elsewhere now
    if store.startswith("http"):
        page: str | None = without_user(store)
    elif settings.tracking.uri is None:
        page = os.environ.get(places.PAGE_VARIABLE)
    else:
        page = None  # a store of the run's own, over which nobody is known to have started a page
    if not page:
        return None
    with contextlib.suppress(Exception):  # whatever MLflow raises where it is out of reach
        from mlflow import MlflowClient

        experiment = MlflowClient(tracking_uri=store).get_run(run_id).info.experiment_id
        return f"{page.rstrip('/')}/#/experiments/{experiment}/runs/{run_id}?workflowType=machine_learning"
    return None
