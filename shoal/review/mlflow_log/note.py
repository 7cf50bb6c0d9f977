"""The description of a run on MLflow's page: the verdict, a link to the report, the task and the outcome."""

from __future__ import annotations

from typing import Any

from shoal.engine.store.run_folder import RunFolder
from shoal.review.mlflow_log.files import REPORT
from shoal.review.results.clusters import cluster_facts
from shoal.review.results.summary import summary_of


def note_text(run: RunFolder, mlflow_run: Any, *, report: bool) -> str:
    """Return a run's description, in Markdown.

    Args:
        run: the run's folder.
        mlflow_run: the MLflow run.
        report: whether MLflow has the report.
    """
    parts = []
    facts = cluster_facts(run)
    if facts is not None and facts.verdict is not None:
        parts.append(f"**Verdict: {facts.verdict.word}.** {facts.verdict.reason}")
    if report:
        info = mlflow_run.info
        link = f"#/experiments/{info.experiment_id}/runs/{info.run_id}/artifacts/{REPORT}"
        parts.append(f"**[Open the report]({link})**")
    summary = summary_of(run)
    parts.append(f"{summary.task} {summary.outcome}")
    return "\n\n".join(parts)
