"""The card of a model in MLflow's registry: what it was made of, what it is worth, its limits, and how to repeat it."""

from __future__ import annotations

import shlex
from typing import Any

from jinja2 import Environment, PackageLoader

from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.client_names import client_names
from shoal.engine.store.embedded import embedded_from
from shoal.engine.store.relocation import stored_path
from shoal.engine.store.run_folder import SETTINGS, RunFolder
from shoal.review.mlflow_log.run_names import shorten
from shoal.review.results.clusters import cluster_facts
from shoal.review.results.result import run_data, run_result
from shoal.review.results.summary import baseline_rows, summary_of

MAX_CARD_CHARACTERS = 5000
"""Characters of a model version's description that MLflow's tables hold."""


def model_card(run: RunFolder, settings: Settings) -> str:
    """Return the card of the final model of a run, in Markdown; it names no client.

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
    # Names of sets and reasons are text in Markdown, too: nothing is escaped.
    environment = Environment(loader=PackageLoader("shoal.review.mlflow_log"), trim_blocks=True, lstrip_blocks=True)
    card = environment.get_template("model_card.md.j2").render(
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
