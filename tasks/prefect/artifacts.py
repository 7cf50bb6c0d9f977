"""Artifacts on a flow run's page in Prefect: progress, the result as a table, a link to the run in MLflow."""

from __future__ import annotations

import contextlib
import contextvars
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from prefect.artifacts import (
    create_link_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from shoal.engine.store.run_events import Event
from shoal.engine.store.run_folder import RunFolder
from shoal.review.mlflow_log.page import mlflow_page
from shoal.review.results.result import run_result, shown_metrics
from shoal.sweeps.search.caveats import value_in_words
from shoal.sweeps.search.result import SearchResult

UPDATE_SECONDS = 2.0
"""Minimum time between updates of the progress artifact."""


class ProgressArtifact:
    """An observer that shows rounds as a progress artifact; it gives up where Prefect cannot be reached.

    Updates are sent from a thread of their own, at most one in `UPDATE_SECONDS`.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._id: Any = None
        self._lost = False
        self._rounds = 1
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="artifact")
        self._pending: Future[None] | None = None
        self._updated = -UPDATE_SECONDS

    def __enter__(self) -> ProgressArtifact:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def __call__(self, event: Event) -> None:
        """Create the artifact when the run starts, move it after each round."""
        if event.kind in ("started", "resumed"):
            self._rounds = event.rounds
        elif event.kind != "round_finished":
            return
        last = event.round == self._rounds
        idle = self._pending is None or self._pending.done()
        if last or (idle and time.monotonic() - self._updated >= UPDATE_SECONDS):
            self._updated = time.monotonic()
            share = 100.0 * event.round / self._rounds
            self._pending = self._thread.submit(contextvars.copy_context().run, self._update, share)

    def _update(self, share: float) -> None:
        if self._lost:
            return
        try:
            if self._id is None:
                description = f"rounds of {self._folder.name}"
                self._id = create_progress_artifact(progress=share, description=description)
            else:
                update_progress_artifact(self._id, progress=share)
        except Exception:
            # Prefect is out of reach: each further attempt would delay the run.
            self._lost = True


def result_artifacts(folder: RunFolder) -> None:
    """Show the result of a run on the flow run's page: a table, and a link to the run in MLflow."""
    result = run_result(folder)
    page = mlflow_page(folder)
    cells = {name: f"{value:.4f}" for name, value in shown_metrics(result).items()}
    cells |= {f"bytes {direction}": f"{count:,}" for direction, count in result.bytes.items()}
    cells |= {"MLflow run": str(result.mlflow_run), "folder": result.run}
    rows = [{"number": name, "value": value} for name, value in cells.items()]
    with contextlib.suppress(Exception):  # Prefect is out of reach: the run's folder has everything
        if page is None:
            create_table_artifact(table=rows, description=f"{folder.name}; MLflow run {result.mlflow_run}")
        else:
            create_table_artifact(table=rows, description=f"{folder.name}; [in MLflow]({page})")
            create_link_artifact(link=page, link_text=f"{folder.name} in MLflow", description="the run in MLflow")


def search_artifacts(result: SearchResult) -> None:
    """Show the trials of a search as a table on the flow run's page, the best first."""
    rows = [
        {
            "trial": trial.number,
            "state": trial.state,
            result.score: "" if trial.score is None else f"{trial.score:.4f}",
            **{setting: value_in_words(value) for setting, value in trial.values.items()},
        }
        for trial in result.ranked
    ]
    with contextlib.suppress(Exception):  # Prefect is out of reach: the search's folder has everything
        create_table_artifact(table=rows, description=f"search {result.search}: its page is in {result.folder}")
