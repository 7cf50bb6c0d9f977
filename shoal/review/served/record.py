"""Two units of work that end a run that is logged to MLflow: log it, then register its model.

Trouble with MLflow becomes an event of the run and never makes the run fail. Executing a unit again changes nothing
that MLflow has.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from shoal.engine.store.run_folder import RunFolder
from shoal.review.mlflow_log.model_registry import register
from shoal.review.mlflow_log.tracking import open_client, report_trouble, sync


@dataclass(frozen=True)
class LogRun:
    """Bring MLflow up to date with a run whose rounds are done: tables, figures, report, checkpoints, final model.

    Args:
        run: the run's folder.
        reported: whether the run's events already say that MLflow does not answer.
    """

    run: Path
    reported: bool = False
    name: ClassVar[str] = "log to MLflow"

    def execute(self) -> bool:
        """Log the run; return whether MLflow has all of it now."""
        run = RunFolder(self.run)
        try:
            sync(run, run.settings())
        except Exception as error:  # whatever MLflow raises, the run is done
            if not self.reported:
                report_trouble(run, error)
            return False
        return True


@dataclass(frozen=True)
class RegisterModel:
    """Register the model that a run has logged, and move the aliases of its name.

    Args:
        run: the run's folder.
    """

    run: Path
    name: ClassVar[str] = "register the model"

    def execute(self) -> str | None:
        """Register the model; return its version, None where the settings want none or MLflow has no model."""
        run = RunFolder(self.run)
        settings = run.settings()
        run_id = run.status().tracking.mlflow_run
        if run_id is None:
            return None
        try:
            return register(run, settings, open_client(settings), run_id)
        except Exception as error:
            report_trouble(run, error)
            return None
