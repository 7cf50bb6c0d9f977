"""A study in MLflow: the parent run has its table, claims and figures, and the runs of its cells are nested in it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from shoal.review.mlflow_log.parent import MAX_TAG_CHARACTERS, ParentRun
from shoal.review.mlflow_log.rounds import allowed_name, metric_name
from shoal_research.definition import Study
from shoal_research.pages import values_table
from shoal_research.result import StudyResult
from shoal_research.wording import verdict_word


def log_result(parent: ParentRun, study: Study, result: StudyResult) -> None:
    """Log a study: means, how many claims have which verdict, and the files of its folder."""
    seeds = max((row.seeds for row in result.rows), default=0)
    parent.finish(result_metrics(result), Path(result.folder), note(study, result), step=seeds)


def result_metrics(result: StudyResult) -> dict[str, float]:
    """Return the table by names in MLflow, a section a metric and row, and how many claims have each verdict."""
    means = {
        f"{metric_name(row.metric)}/{allowed_name(row.row_key)}/{allowed_name(row.column_key)}": row.mean
        for row in result.rows
    }
    verdicts = Counter(str(claim.verdict) for claim in result.claims)
    return means | {f"claims/{allowed_name(verdict)}": float(count) for verdict, count in verdicts.items()}


def note(study: Study, result: StudyResult) -> str:
    """Return the study in words: its title, and its table and claims if MLflow keeps so many characters."""
    head = f"{study.title[:1].upper()}{study.title[1:]} ({study.paper}). {result.about}"
    claims = "\n".join(f"- {claim.claim}: **{verdict_word(claim)}**" for claim in result.claims)
    files = "Numbers, claims and figures: `result.json`, `table.csv` and images among the artifacts."
    table = values_table(study, result.scale, result.rows)
    whole = "\n\n".join(part for part in (head, table, claims, files) if part)
    if len(whole) <= MAX_TAG_CHARACTERS:
        return whole
    return "\n\n".join((head, files))
