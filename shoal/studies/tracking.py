"""A study in MLflow: a parent run with its table, claims and figures, under which the runs of its cells are nested."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from shoal.engine.settings import places
from shoal.engine.settings.run_settings import Settings, make_settings
from shoal.review.mlflow_log.parent import MAX_TAG_CHARACTERS, ParentRun
from shoal.review.mlflow_log.rounds import allowed_name, metric_name
from shoal.studies.definition import Study
from shoal.studies.pages import values_table
from shoal.studies.result import StudyResult

TAG = "shoal.study"
"""Tag of a parent run: the study and its scale."""


def parent_of(study: Study, scale: str, settings: Sequence[Settings]) -> ParentRun:
    """The run in MLflow that the runs of a study are nested under.

    Args:
        study, scale: what is run.
        settings: of its runs, which are all logged to one place; where there are none nothing is.
    """
    one = settings[0] if settings else make_settings({"tracking": {"mlflow": False}})
    name = f"study {study.name} at scale {scale}"
    tags = {"shoal.scale": scale, "shoal.paper": study.paper}
    return ParentRun(one, places.mlflow_store(), (TAG, f"{study.name} {scale}"), name, tags)


def log_result(parent: ParentRun, study: Study, result: StudyResult) -> None:
    """Log what a study came to: means, how many claims have which verdict, and its folder with tables and figures."""
    seeds = max((row.seeds for row in result.rows), default=0)
    parent.finish(result_metrics(result), Path(result.folder), note_of(study, result), step=seeds)


def result_metrics(result: StudyResult) -> dict[str, float]:
    """The table by names in MLflow, a section a metric and row; and how many claims have each verdict."""
    means = {
        f"{metric_name(row.metric)}/{allowed_name(row.row_key)}/{allowed_name(row.column_key)}": row.mean
        for row in result.rows
    }
    verdicts = Counter(str(claim.verdict) for claim in result.claims)
    return {**means, **{f"claims/{allowed_name(verdict)}": float(count) for verdict, count in verdicts.items()}}


def note_of(study: Study, result: StudyResult) -> str:
    """The study in words: what it shows, its table as far as it fits, and its claims with their verdicts."""
    head = f"{study.title[:1].upper()}{study.title[1:]} ({study.paper}). {result.about}"
    claims = "\n".join(f"- {claim.claim}: **{claim.verdict}**" for claim in result.claims)
    files = "Numbers, claims and figures: `result.json`, `table.csv` and images among the artifacts."
    table = values_table(study, result.scale, result.rows)
    whole = "\n\n".join(part for part in (head, table, claims, files) if part)
    return whole if len(whole) <= MAX_TAG_CHARACTERS else "\n\n".join((head, files))
