"""The next step after a run, in a sentence and a command: the report shows it below the verdict."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.engine.settings.defaults import changed_settings
from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.run_folder import SETTINGS, RunFolder
from shoal.engine.store.status import FINISHED
from shoal.methods.registry import METHODS
from shoal.methods.scores.baselines import CENTRED, Comparison
from shoal.methods.scores.verdict import MARGIN, in_words
from shoal.review.results.clusters import ClusterFacts, cluster_facts
from shoal.review.results.result import RunResult
from shoal.review.results.stable_names import DECIDED

MORE_ROUNDS = 4
"""The factor on the rounds that is suggested for a run that trained too little."""
SIMPLE_METHOD = "fedkmeans"
"""The method that does over clients what the null baselines do on pooled data."""
KEPT = ("data.", "partition.", "seed", "privacy.", "model.clusters")
"""Settings of a run that one of `SIMPLE_METHOD` on the same samples shares begin so."""
COLUMNS = {"columns": "method.standardise=false", "standardised": "method.standardise=true"}
"""The setting of `SIMPLE_METHOD` that clusters a space of columns."""


@dataclass(frozen=True)
class NextStep:
    """The next step after a run.

    Attributes:
        words: one or two sentences.
        command: to type; may be empty.
    """

    words: str
    command: str = ""


def next_step(run: RunFolder, result: RunResult) -> NextStep:
    """Return what to do after a run, by its state and its verdict.

    Args:
        run: the run's folder.
        result: of the run.
    """
    if result.status != FINISHED:
        return NextStep(
            f"The run is {result.status}: continue it, and it ends as if nothing had happened.",
            f"shoal run --resume {run.name}",
        )
    decided = next((event for event in reversed(run.whole_events()) if event.kind == DECIDED), None)
    if decided is not None and not decided.facts.get("promoted"):
        return after_night(run, decided.facts)
    settings = run.settings()
    facts = cluster_facts(run)
    if result.verdict is None or facts is None:
        return NextStep("Compare it with another run.", f"shoal compare {run.name} OTHER-RUN --html both.html")
    if run.lineage().sites:
        return NextStep(
            "Have each site look at the samples of its clusters, in clusters.parquet of its folder of the run: only "
            "people can say whether these are the groups that they want."
        )
    if result.verdict.word == "good":
        return after_good(run, settings)
    return after_doubt(run, settings, facts)


def after_night(run: RunFolder, decision: Mapping[str, Any]) -> NextStep:
    """Return what to do with the model of a night that is not the champion.

    Args:
        run: the night's run.
        decision: facts of its event `DECIDED`.
    """
    why = decision.get("why", "")
    if decision.get("waits"):
        return NextStep(
            f"The night asks for your approval: {why}. Look at the samples of each cluster below. If these are the "
            "groups that you want, make it the champion.",
            f"shoal model promote {run.name} --why REASON",
        )
    return NextStep(f"Nothing: the champion stays in use ({why}).")


def after_good(run: RunFolder, settings: Settings) -> NextStep:
    """Return what to do with clusters or features that are worth something."""
    if METHODS[settings.method.name].judges_features and not METHODS[settings.method.name].finds_clusters:
        return NextStep(
            "The features are worth using. Compare with another method or seed before you rely on a difference.",
            f"shoal compare {run.name} OTHER-RUN --html both.html",
        )
    return NextStep(
        "Look at the samples of each cluster below: only you can say whether these are the groups that you want. If "
        "they are, assign new samples to them.",
        f"shoal predict {run.name} NEW_SAMPLES --out found.csv",
    )


def after_doubt(run: RunFolder, settings: Settings, facts: ClusterFacts) -> NextStep:
    """Return what may help where the verdict is doubtful or chance."""
    comparison = facts.comparison
    assert comparison is not None, "there is a verdict"
    if comparison.groups is not None and not comparison.groups.clear:
        return NextStep(
            "Look at the samples of each cluster below. If you see no groups either, change what is clustered: other "
            "columns, an encoder that knows such images, or more samples.",
            f"shoal data show {settings.data.name}",
        )
    differ = comparison.twins or (facts.sites is not None and facts.sites.closed_sites)
    private = settings.privacy.clip is not None  # noise covers neither means of sites nor a choice of the number
    if differ and not private and getattr(settings.method, "sites", "centre") != "centre":
        change = "sites=centre"
        if facts.data.spec.kind == "image" and settings.method.representation != "light":
            change = "representation=light"
        return NextStep(
            "Clients seem to differ by light, stain or an offset. Take that away, and see whether the clusters stay.",
            same_but(run, f"method.{change}"),
        )
    if (lead := leading_baseline(comparison)) is not None:
        return after_baseline(run, settings, lead, by_neighbours=comparison.acc is None and comparison.probe is None)
    words = "Look at the samples of each cluster below. Another number of clusters may suit the data better"
    if private or settings.privacy.sums != "plain" or run.lineage().clusters_chosen is not None:
        return NextStep(f"{words}.", same_but(run, "model.clusters=NUMBER"))
    return NextStep(f"{words}: auto tries several, without labels.", same_but(run, "model.clusters=auto"))


def after_baseline(run: RunFolder, settings: Settings, lead: str, *, by_neighbours: bool) -> NextStep:
    """Return what may help where K-means on some space does better than the run.

    Args:
        run: its folder.
        settings: of the run.
        lead: the space.
        by_neighbours: whether only neighbours say so. They are no proof: groups of one colour or one place are near
            each other, whatever else is in the images.
    """
    better = f"K-means on {in_words(lead)} does better than this run."
    if by_neighbours:
        better = f"By neighbours K-means on {in_words(lead)} may do better than this run: only the samples can tell."
    simpler = simple_settings(lead)
    if simpler is not None:
        words = f"{better} It is quick: run it over the clients, and look at the samples of its clusters beside these."
        return NextStep(words, simple_command(settings, simpler))
    if METHODS[settings.method.name].trains and not by_neighbours:
        words = f"{better} Training has not helped yet: train longer."
        return NextStep(words, same_but(run, f"rounds={MORE_ROUNDS * settings.rounds}"))
    return NextStep(f"{better} Another method may suit the data.", f"shoal data show {settings.data.name}")


def leading_baseline(comparison: Comparison) -> str | None:
    """Return the space in which K-means is above the run by more than the verdict's margin; None where it is not."""
    scores: Mapping[str, float] = comparison.baseline_neighbours
    score: float | None = comparison.neighbours
    if comparison.probe is not None and comparison.baseline_probes:
        scores = comparison.baseline_probes
        score = comparison.probe
    elif comparison.acc is not None:
        scores = comparison.baseline_acc
        score = comparison.acc
    if not scores or score is None:
        return None
    best = max(scores, key=lambda space: scores[space])
    if scores[best] <= score + MARGIN:
        return None
    return best


def simple_settings(space: str) -> list[str] | None:
    """Return the settings with which `SIMPLE_METHOD` clusters a space; None for a network that is not trained."""
    centred = []
    if space.endswith(CENTRED):
        centred = ["method.sites=centre"]
        space = space.removesuffix(CENTRED)
    if space == "untrained":
        return None
    if space in COLUMNS:
        return [COLUMNS[space], *centred]
    return [f"model.encoder={space}", *centred]


def same_but(run: RunFolder, change: str) -> str:
    """Return the command of a run with the settings of another one, but for one `key=value`."""
    file = run.path / SETTINGS
    if file.is_relative_to(Path.cwd()):
        file = file.relative_to(Path.cwd())
    return f"shoal run {shlex.quote(str(file))} --set {shlex.quote(change)}"


def simple_command(settings: Settings, changes: list[str]) -> str:
    """Return the command of a run of `SIMPLE_METHOD` on the data of another run, divided and kept private as there.

    Args:
        settings: of that run.
        changes: settings of the method and the model, `key=value`.
    """
    values = [f"data.name={settings.data.name}", f"partition.kind={settings.partition.kind}"]
    values += [f"{key}={value}" for key, value in changed_settings(settings).items() if key.startswith(KEPT)]
    values += [f"method.name={SIMPLE_METHOD}", *changes]
    return "shoal run " + " ".join(f"--set {shlex.quote(value)}" for value in values)
