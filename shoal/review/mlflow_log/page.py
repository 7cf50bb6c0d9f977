"""The address of a run on MLflow's page."""

from __future__ import annotations

import os

from shoal.engine.settings import places
from shoal.engine.settings.addresses import without_user
from shoal.engine.store.run_folder import RunFolder
from shoal.review.mlflow_log.embedded_store import recorded_uri
from shoal.review.mlflow_log.tracking import shown_uri, tracking_uri


def mlflow_page(folder: RunFolder) -> str | None:
    """Return the address of a run on MLflow's page.

    Returns:
        None where the run is not in MLflow, or where no page of its store is known.
    """
    tracking = folder.status().tracking
    settings = folder.settings()
    run_id = tracking.mlflow_run
    if not run_id or tracking.mlflow_uri != recorded_uri(shown_uri(settings)):
        return None  # it is not logged, or it is logged elsewhere now
    store = tracking_uri(settings)
    # The page of a store of the run's own, without a server, is not known.
    page = os.environ.get(places.PAGE_VARIABLE) if settings.tracking.uri is None else None
    if store.startswith("http"):
        page = without_user(store)
    return f"{page.rstrip('/')}/#/runs/{run_id}" if page else None
