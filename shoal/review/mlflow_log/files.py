"""A run's files in MLflow: settings, lineage, tables, report and figures."""

from __future__ import annotations

from typing import Any

from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.run_folder import RunFolder
from shoal.review.results import views
from shoal.review.results.clusters import CENTRES, FACTS, TABLE

FILES = ("settings.yaml", "lineage.json", "rounds.parquet")
CLIENT_FILES = ("events.jsonl", "clients.parquet", TABLE, FACTS, CENTRES)
"""Files with data of single clients."""
REPORT = "Report.html"
"""The report among the artifacts: MLflow lists capital letters first, so that it stands above all other files."""


def log_files(client: Any, run_id: str, run: RunFolder, settings: Settings) -> None:
    """Log the files of a run that has ended; files that MLflow has are replaced.

    With `tracking.clients` false, files with data of single clients are left out: only rounds, settings and the model
    are logged.

    Args:
        client: an MlflowClient.
        run_id: the MLflow run.
        run: the run's folder.
        settings: of the run.
    """
    names = FILES + CLIENT_FILES if settings.tracking.clients else FILES
    for path in (run.path / name for name in names):
        if path.exists():
            client.log_artifact(run_id, str(path))
    report = run.path / views.REPORT
    if settings.tracking.clients and report.exists():
        client.log_text(run_id, report.read_text(), REPORT)
        client.log_artifacts(run_id, str(run.figures), "figures")
