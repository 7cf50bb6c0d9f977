"""The card of a model in MLflow's registry: what it was made of, what it is worth, its limits, and how to repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.client_names import client_names
from shoal.engine.store.relocation import stored_path
from shoal.engine.store.run_folder import SETTINGS, RunFolder
from shoal.methods.scores.verdict import site_sentence
from shoal.review.mlflow_log.note import report_link
from shoal.review.mlflow_log.run_names import partition_title, shorten
from shoal.review.results.baseline_tables import baseline_rows
from shoal.review.results.clusters import ClusterFacts, cluster_facts
from shoal.review.results.result import run_result
from shoal.review.results.stable_names import NAME, NAME_MEANING
from shoal.review.results.summary import counted, summary_of

MAX_CARD_CHARACTERS = 5000
"""Characters of a model version's description that MLflow's tables hold."""


def model_card(run: RunFolder, settings: Settings, found: Any) -> str:
    """Return the card of the final model of a run, in Markdown.

    With `tracking.clients` false it names no client.

    Args:
        run: the run's folder.
        settings: of the run.
        found: the MLflow run.
    """
    facts = cluster_facts(run)
    parts = [
        verdict_part(facts),
        summary_of(run).task,
        as_list(origin_rows(run, settings, facts)),
        answers_part(facts),
        quality_part(run, facts),
        sites_part(run, settings, facts),
        limits_part(run, facts),
        repeat_part(run),
        links_part(run, settings, found),
    ]
    return shorten("\n\n".join(part for part in parts if part), MAX_CARD_CHARACTERS)


def verdict_part(facts: ClusterFacts | None) -> str:
    """Return the verdict and its reason; empty where there is none; MLflow's list shows no markup."""
    if facts is None or facts.verdict is None:
        return ""
    return f"Verdict: {facts.verdict.word}. {facts.verdict.reason}"


def origin_rows(run: RunFolder, settings: Settings, facts: ClusterFacts | None) -> list[tuple[str, str]]:
    """Return for each thing that the model was made of its name, and its value with digests."""
    lineage = run.lineage()
    rows = [("method", f"{settings.method.name}, {counted(settings.rounds, 'round')}, seed {settings.seed}")]
    subset = f" ({lineage.data.subset})" if lineage.data.subset else ""
    rows.append(("data", f"{lineage.data.name}{subset}: sha256 {lineage.data.digest}, DVC {lineage.data.dvc}"))
    partition = f"{partition_title(settings)}: sha256 {lineage.partition.digest}, DVC {lineage.partition.dvc}"
    rows.append(("partition", partition))
    rows.append(("sites", f"{len(client_names(run)):,}"))
    rows.append(("clusters (K)", clusters_in_words(run, facts)))
    if lineage.encoder is not None:
        rows.append(("encoder", f"{lineage.encoder.in_words()}: sha256 {lineage.encoder.sha256}"))
    if lineage.git.commit:
        rows.append(("commit", lineage.git.in_words()))
    rows.append(("Shoal", f"{lineage.shoal.in_words()}: sha256 {lineage.shoal.sha256}"))
    rows.append(("weights", f"sha256 {run.status().weights_sha256}, after round {run.status().round}"))
    if lineage.origin is not None:
        rows.append(("started from", f"run {lineage.origin.run}, round {lineage.origin.round}"))
    return rows


def clusters_in_words(run: RunFolder, facts: ClusterFacts | None) -> str:
    """Return the number of clusters, and how it was chosen where it was."""
    if facts is None:
        return "none: the model gives features, and samples have no clusters"
    choice = run.lineage().clusters_chosen
    if choice is None:
        return str(facts.clusters)
    return f"{facts.clusters}, chosen among {choice.min_clusters} to {choice.max_clusters}: {choice.rule}"


def answers_part(facts: ClusterFacts | None) -> str:
    """Return what the numbers of clusters in the model's answers mean; empty where it has no clusters."""
    if facts is None:
        return ""
    rows = [(f"`{NAME}`", NAME_MEANING), ("`cluster`", "its number in this model alone")]
    return f"### What it answers\n\n{as_list(rows)}"


def quality_part(run: RunFolder, facts: ClusterFacts | None) -> str:
    """Return the scores beside null baselines; without baselines the scores alone."""
    if facts is not None and facts.comparison is not None:
        rows = [(row.pop(""), in_one_line(row)) for row in baseline_rows(facts.comparison)]
        return f"### Quality beside null baselines\n\n{as_list(rows)}"
    scores = [(number.name, number.value) for number in summary_of(run).numbers]
    return f"### Quality\n\n{as_list(scores)}"


def in_one_line(scores: Mapping[str, str]) -> str:
    """Return scores by their names in one line; those without a value are left out.

    >>> in_one_line({"ACC": "0.800", "linear probe": "", "neighbour agreement": "0.200"})
    'ACC 0.800, neighbour agreement 0.200'
    """
    return ", ".join(f"{name} {value}" for name, value in scores.items() if value)


def sites_part(run: RunFolder, settings: Settings, facts: ClusterFacts | None) -> str:
    """Return how much clusters depend on sites; empty where that is unknown."""
    if facts is None or facts.sites is None:
        return ""
    if settings.tracking.clients:
        words = site_sentence(facts.sites, dict(enumerate(client_names(run))), facts.numbers)
    else:
        sites = facts.sites
        words = (
            f"Normalised mutual information of cluster and site is {sites.nmi:.3f}, by chance up to "
            f"{sites.by_chance:.3f}; {counted(len(sites.site_clusters), 'cluster')} with little but one site."
        )
    return f"### Clusters and sites\n\n{words}"


def limits_part(run: RunFolder, facts: ClusterFacts | None) -> str:
    """Return what the numbers do not say."""
    limits = []
    choice = run.lineage().clusters_chosen
    if choice is not None and choice.doubt is not None:
        limits.append(f"Do not trust the number of clusters: {choice.doubt}.")
    if facts is not None and facts.comparison is not None:
        limits.append(f"Quality was judged on {facts.comparison.samples:,} samples of this data set, and on no other.")
        if facts.comparison.acc is None and facts.comparison.probe is None:
            limits.append("There are no labels: no number here says whether clusters are the ones that you want.")
    if facts is not None:
        shape = " x ".join(map(str, facts.data.shape))
        limits.append(f"It takes samples of kind {facts.data.kind}, of shape {shape}, like those of {facts.data.name}.")
        if facts.data.embedded is not None:
            limits.append(
                f"It also takes images like those of {facts.data.embedded.images}, where the encoder "
                f"{facts.data.embedded.encoder.name} is installed with the weights that made these vectors (sha256 "
                f"{facts.data.embedded.encoder.sha256[:12]})."
            )
    if "epsilon_sent" in run_result(run).metrics:
        limits.append("Updates were private: privacy/epsilon_sent of the run says how far.")
    else:
        limits.append("Updates were not private: the weights may say something about single samples.")
    return "### Limits\n\n" + "\n".join(f"- {limit}" for limit in limits)


def repeat_part(run: RunFolder) -> str:
    """Return the command that computes the model again."""
    command = f"shoal run {shlex.quote(f'{stored_path(run.path)}/{SETTINGS}')}"
    return f"### Repeat it\n\nIn the project's home, with the code and the data above:\n\n    {command}"


def links_part(run: RunFolder, settings: Settings, found: Any) -> str:
    """Return links to the run, and to its report where MLflow has it."""
    info = found.info
    links = f"[Run {run.name}](#/experiments/{info.experiment_id}/runs/{info.run_id})"
    if settings.tracking.clients:
        links += f", [report]({report_link(found)})"
    return links


def as_list(rows: Sequence[tuple[str, str]]) -> str:
    """Return names and values as a list in Markdown."""
    return "\n".join(f"- **{name}**: {value}" for name, value in rows)
