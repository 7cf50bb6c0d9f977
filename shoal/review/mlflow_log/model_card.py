"""The card of a model in MLflow's registry: what it was made of, what it is worth, its limits, and how to repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.client_names import client_names
from shoal.engine.store.relocation import stored_path
from shoal.engine.store.run_folder import SETTINGS, RunFolder
from shoal.review.mlflow_log.origins import sources_of
from shoal.review.mlflow_log.run_names import shorten
from shoal.review.results.clusters import ClusterFacts, cluster_facts
from shoal.review.results.result import run_result
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
    verdict = ""
    if facts is not None and facts.verdict is not None:
        verdict = f"Verdict: {facts.verdict.word}. {facts.verdict.reason}"  # MLflow's list shows no markup
    origin = "\n".join(f"- **{name}**: {value}" for name, value in origin_rows(run, settings, facts))
    command = f"shoal run {shlex.quote(f'{stored_path(run.path)}/{SETTINGS}')}"
    parts = [
        verdict,
        summary_of(run).task,
        origin,
        section("Quality beside null baselines", quality(run, facts)),
        section("Limits", limits(run, facts)),
        f"### Repeat it\n\nIn the project's home, with the code and the data above:\n\n    {command}",
    ]
    return shorten("\n\n".join(part for part in parts if part), MAX_CARD_CHARACTERS)


def section(title: str, lines: Sequence[str]) -> str:
    """Return a heading with a list below it, in Markdown."""
    return f"### {title}\n\n" + "\n".join(f"- {line}" for line in lines)


def origin_rows(run: RunFolder, settings: Settings, facts: ClusterFacts | None) -> list[tuple[str, str]]:
    """Return for each thing that the model was made of its name, and its value with digests."""
    origin = run.lineage().origin
    rows = [
        ("method", f"{settings.method.name}, seed {settings.seed}"),
        ("sites", f"{len(client_names(run)):,}"),
        ("clusters (K)", "none" if facts is None else str(facts.clusters)),
        ("weights", f"sha256 {run.status().weights_sha256}, after round {run.status().round}"),
    ]
    rows += [(row.what, f"{row.name}: {row.digest}".removesuffix(": ")) for row in sources_of(run)]
    if origin is not None:
        rows.append(("started from", f"run {origin.run}, round {origin.round}"))
    return rows


def quality(run: RunFolder, facts: ClusterFacts | None) -> list[str]:
    """Return the scores beside null baselines; without baselines the scores alone."""
    if facts is None or facts.comparison is None:
        return [f"**{number.name}**: {number.value}" for number in summary_of(run).numbers]
    lines = []
    for row in baseline_rows(facts.comparison):
        name = row.pop("")
        lines.append(f"**{name}**: " + ", ".join(f"{score} {value}" for score, value in row.items() if value))
    return lines


def limits(run: RunFolder, facts: ClusterFacts | None) -> list[str]:
    """Return what the numbers do not say."""
    lines = []
    choice = run.lineage().clusters_chosen
    if choice is not None and choice.doubt is not None:
        lines.append(f"Do not trust the number of clusters: {choice.doubt}.")
    if facts is not None and facts.comparison is not None:
        lines.append(f"Quality was judged on {facts.comparison.samples:,} samples of this data set, and on no other.")
        if facts.comparison.acc is None and facts.comparison.probe is None:
            lines.append("There are no labels: no number here says whether clusters are the ones that you want.")
    if facts is not None:
        spec = facts.data.spec
        shape = " x ".join(map(str, spec.shape))
        lines.append(f"It takes samples of kind {spec.kind}, of shape {shape}, like those of {spec.name}.")
    if "epsilon_sent" not in run_result(run).metrics:
        lines.append("Updates were not private: the weights may say something about single samples.")
    return lines
