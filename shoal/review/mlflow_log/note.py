"""The description of a run on MLflow's page: the verdict, a link to the report, the task and the outcome."""

from __future__ import annotations

from typing import Any

from shoal.engine.store.run_folder import RunFolder
from shoal.review.mlflow_log.experiments import NOTE
from shoal.review.mlflow_log.files import REPORT
from shoal.review.mlflow_log.own_texts import digest, is_own
from shoal.review.results.attempts import attempt
from shoal.review.results.clusters import cluster_facts
from shoal.review.results.summary import Summary, summary_of

NOTE_WRITTEN = "mlflow.shoal.note"
"""Tag of a run: digest of the description that Shoal wrote."""


def note_tags(run: RunFolder, found: Any, *, report: bool) -> dict[str, str]:
    """Return the tags that describe a run.

    Args:
        run: the run's folder.
        found: the MLflow run.
        report: whether MLflow has the report.

    Returns:
        No tag where there is no summary, where a user wrote a description, or where nothing changed.
    """
    summary = attempt(run, "the description in MLflow", lambda: summary_of(run))
    if summary is None:
        return {}
    present = found.data.tags.get(NOTE, "")
    if not is_own(present, found.data.tags, NOTE_WRITTEN):
        return {}
    link = ""
    if report:
        link = report_link(found)
    text = note_text(run, summary, link)
    if text == present:
        return {}
    return {NOTE: text, NOTE_WRITTEN: digest(text)}


def note_text(run: RunFolder, summary: Summary, link: str) -> str:
    """Return a run's description, in Markdown.

    Args:
        run: the run's folder.
        summary: of the run.
        link: to the report; may be empty.
    """
    parts = []
    facts = cluster_facts(run)
    if facts is not None and facts.verdict is not None:
        parts.append(f"**Verdict: {facts.verdict.word}.** {facts.verdict.reason}")
    if link:
        parts.append(f"**[Open the report]({link})**")
    parts.append(f"{summary.task} {summary.outcome}")
    return "\n\n".join(parts)


def report_link(found: Any) -> str:
    """Return the address of a run's report on MLflow's page."""
    info = found.info
    return f"#/experiments/{info.experiment_id}/runs/{info.run_id}/artifacts/{REPORT}"
