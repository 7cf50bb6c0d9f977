"""Descriptions on MLflow's pages, in Markdown: of a run, and of a model in the registry."""

from __future__ import annotations

import shlex
from typing import Any

from jinja2 import Environment, PackageLoader

from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.client_names import client_names
from shoal.engine.store.embedded import embedded_from
from shoal.engine.store.relocation import stored_path
from shoal.engine.store.run_folder import SETTINGS, RunFolder
from shoal.review.mlflow_log.files import REPORT
from shoal.review.mlflow_log.run_names import shorten
from shoal.review.results.clusters import cluster_facts
from shoal.review.results.result import run_data, run_result
from shoal.review.results.summary import baseline_rows, summary_of

MAX_CARD_CHARACTERS = 5000
"""Characters of a model version's description that MLflow's tables hold."""


def model_card(run: RunFolder, settings: Settings) -> str:
    """Return the card of the final model of a run: what it was made of, what it is worth, its limits; no client's name.

    Args:
        run: the run's folder.
        settings: of the run.
    """
    facts = cluster_facts(run)
    parts: dict[str, Any] = {}
    if (data := run_data(run)) is not None:
        parts["images"] = embedded_from(data[0].manifest)
    if facts is not None and facts.comparison is not None:
        parts |= {"comparison": facts.comparison, "baselines": baseline_rows(facts.comparison)}
    card = in_markdown(
        "model_card.md.j2",
        settings=settings,
        status=run.status(),
        facts=facts,
        summary=summary_of(run),
        sites=len(client_names(run)),
        lineage=run.lineage(),
        partition=run.folder_of("partition").name,
        private="epsilon_sent" in run_result(run).metrics,
        command=f"shoal run {shlex.quote(f'{stored_path(run.path)}/{SETTINGS}')}",
        **parts,
    )
    return shorten(card, MAX_CARD_CHARACTERS)


def run_note(run: RunFolder, *, report: Any) -> str:
    """Return a run's description.

    Args:
        run: the run's folder.
        report: the MLflow run, where it has the report; else None.
    """
    return in_markdown("run_note.md.j2", facts=cluster_facts(run), summary=summary_of(run), report=report, name=REPORT)


def in_markdown(template: str, **parts: Any) -> str:
    """Return a text from a template; nothing is escaped, since names and reasons are text in Markdown, too."""
    environment = Environment(loader=PackageLoader("shoal.review.mlflow_log"), trim_blocks=True, lstrip_blocks=True)
    return environment.get_template(template).render(**parts)
