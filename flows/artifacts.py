"""What a flow run shows on its page in Prefect: progress, the result as a table, a link to the run in MLflow."""

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
from shoal.sweeps.search.caveats import shown
from shoal.sweeps.search.result import SearchResult, ranked

EVERY = 2.0
"""Seconds between updates of the progress artifact, at least."""


class ProgressArtifact:
    """An observer that shows rounds as a progress artifact; silent where Prefect cannot be reached.

    Prefect is told on a thread of its own, and not of every round where rounds are short.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._id: Any = None
        self._silent = False
        self._rounds = 1
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="artifact")
        self._pending: Future[None] | None = None
        self._told = -EVERY

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
        if last or (idle and time.monotonic() - self._told >= EVERY):
            self._told = time.monotonic()
            share = 100.0 * event.round / self._rounds
            self._pending = self._thread.submit(contextvars.copy_context().run, self._tell, share)

    def _tell(self, share: float) -> None:
        if self._silent:
            return
        try:
            if self._id is None:
                about = f"rounds of {self._folder.name}"
                self._id = create_progress_artifact(progress=share, description=about)
            else:
                update_progress_artifact(self._id, progress=share)
        except Exception:
            # Prefect is out of reach: each further try would make the run wait.
            self._silent = True


def result_artifacts(folder: RunFolder) -> None:
    """The result of a run as a table, and a link to its MLflow run, on the page of the flow run that asks."""
    result = run_result(folder)
    page = mlflow_page(folder)
    rows = [{"what": name, "value": f"{value:.4f}"} for name, value in shown_metrics(result).items()]
    rows += [{"what": f"bytes {way}", "value": f"{count:,}"} for way, count in result.bytes.items()]
    rows += [{"what": "MLflow run", "value": str(result.mlflow_run)}, {"what": "folder", "value": result.run}]
    with contextlib.suppress(Exception):  # Prefect is out of reach: the run's folder has everything
        shown = f"[in MLflow]({page})" if page else f"MLflow run {result.mlflow_run}"
        create_table_artifact(table=rows, description=f"{folder.name}; {shown}")
        if page is not None:
            create_link_artifact(link=page, link_text=f"{folder.name} in MLflow", description="the run in MLflow")


def search_artifacts(result: SearchResult) -> None:
    """The trials of a search as a table on the page of the flow run that asks, the best first."""
    rows = [
        {
            "trial": trial.number,
            "state": trial.state,
            result.score: "" if trial.score is None else f"{trial.score:.4f}",
            **{setting: shown(value) for setting, value in trial.values.items()},
        }
        for trial in ranked(result)
    ]
    with contextlib.suppress(Exception):  # Prefect is out of reach: the search's folder has everything
        create_table_artifact(table=rows, description=f"search {result.search}: its page is in {result.folder}")
