"""The task and the outcome of a run in two sentences and five numbers, with which its report begins."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
from rich.filesize import decimal

from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.status import FINISHED
from shoal.methods.registry import METHODS
from shoal.methods.scores.baselines import Comparison
from shoal.methods.scores.verdict import in_words
from shoal.review.results.clusters import cluster_facts, read_clusters
from shoal.review.results.result import RunResult, run_data, run_result

SCORES = ("acc", "nmi", "perplexity", "knn", "probe", "neighbour_agreement", "silhouette", "loss")
"""The scores that a summary may name, the most telling first: those with labels before those without."""
MAX_SCORES = 2
"""The largest number of scores in a summary."""
IN_WORDS = {
    "acc": "ACC",
    "nmi": "NMI",
    "knn": "k-NN accuracy",
    "probe": "linear probe",
    "neighbour_agreement": "neighbour agreement",
}
"""The names that people use for scores with abbreviated names; other scores have their own names."""


@dataclass(frozen=True)
class Number:
    """One number of a summary.

    Attributes:
        value: as it is shown, with its unit.
        name: what it is, in a word or two.
        about: what else a reader must know; may be empty.
    """

    value: str
    name: str
    about: str = ""


@dataclass(frozen=True)
class Summary:
    """The beginning of a report.

    Attributes:
        task: one sentence: method, data, clients, rounds.
        outcome: one sentence: finished rounds, clusters and scores.
        numbers: at most five: clusters, two scores, bytes, time.
    """

    task: str
    outcome: str
    numbers: tuple[Number, ...]


def summary_of(run: RunFolder) -> Summary:
    """Return the summary of a run, finished or not; what it does not have is left out.

    Args:
        run: the run's folder.
    """
    result = run_result(run)
    values = {**result.metrics, **result.quality}
    names = [name for name in SCORES if name in values][:MAX_SCORES]
    scores = [Number(f"{values[name]:.3f}", IN_WORDS.get(name, name.replace("_", " "))) for name in names]
    numbers = (*clusters_found(run, result), *scores)
    costs = (Number(size(sum(result.bytes.values())), "sent"), Number(duration(result.seconds), "time"))
    return Summary(task_sentence(run), outcome_sentence(run, result, numbers), (*numbers, *costs))


def task_sentence(run: RunFolder) -> str:
    """Return the task in one sentence; the number of samples is left out where the data are elsewhere."""
    settings = run.settings()
    method = METHODS[settings.method.name]
    samples_text = ""
    if (data := run_data(run)) is not None:
        prepared, partition = data
        samples = counted(len(partition.sample), f"{prepared.manifest.kind} sample")
        verb = "pooled from" if method.pooled else "held by"
        samples_text = f": {samples} {verb} {counted(partition.clients, 'client')}"
        if settings.partition.kind != "by_column":  # then each client has its own data
            samples_text += f" ({settings.partition.kind.replace('_', ' ')} partition)"
    labels = "with" if method.learns_from_labels else "without"
    rounds = f"in at most {counted(settings.rounds, 'round')}"
    return f"{settings.method.name} learns from {settings.data.name} {labels} labels, {rounds}{samples_text}."


def progress_in_words(run: RunFolder, result: RunResult) -> str:
    """Return how many of its rounds a run has done, and why it needed no more."""
    planned = run.settings().rounds
    if result.rounds == planned:
        return f"{result.status} after {counted(planned, 'round')}"
    words = f"{result.status} after {result.rounds} of {counted(planned, 'round')}"
    if result.status != FINISHED:
        return words
    spent = any(event.kind == "budget_spent" for event in run.events())
    return f"{words}, {'where its privacy budget is spent' if spent else 'since more would change nothing'}"


def outcome_sentence(run: RunFolder, result: RunResult, numbers: tuple[Number, ...]) -> str:
    """Return the outcome in one sentence."""
    state = f"It {'' if result.status == FINISHED else 'is '}{progress_in_words(run, result)}"
    parts = [
        f"{number.value} {number.name} {number.about}".strip()
        if number.name.startswith("cluster")
        else f"{number.name} {number.value}"
        for number in numbers
    ]
    return f"{': '.join(filter(None, (state, ', '.join(parts))))}."


def clusters_found(run: RunFolder, result: RunResult) -> tuple[Number, ...]:
    """Return how many clusters have samples, and how many; else what the method counted; empty where it has none."""
    facts = cluster_facts(run)
    table = read_clusters(run, ["cluster"])
    if facts is not None and table is not None:
        sizes = table["cluster"].value_counts()
        about = f"of {sizes.min():,} to {sizes.max():,} samples"
        if unused := facts.clusters - len(sizes):
            about += f"; {unused} of {facts.clusters} are empty"
        return (Number(f"{len(sizes)}", plural(len(sizes), "cluster"), about),)
    for name, ending in (("clusters_used", ""), ("clusters", " of clients")):
        if name in result.metrics:
            count = round(result.metrics[name])
            return (Number(f"{count}", plural(count, "cluster") + ending),)
    return ()


def size(count: float) -> str:
    """Return a number of bytes in the unit that leaves few digits.

    >>> size(14_349_360)
    '14.3 MB'
    """
    return decimal(int(count))


def duration(seconds: float) -> str:
    """Return a time in minutes; below one in seconds, from two hours on in hours.

    >>> duration(9.4), duration(90), duration(9000)
    ('9.4 s', '1.5 min', '2.5 h')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "round"), counted(1797, "sample")
    ('1 round', '1,797 samples')
    """
    return f"{count:,} {plural(count, noun)}"


def plural(count: int, noun: str) -> str:
    """Return the noun as it follows a number."""
    if count == 1:
        return noun
    return f"{noun}s"


def baseline_rows(comparison: Comparison) -> list[dict[str, str]]:
    """Return a row for the run, one for each null baseline, and one for random clusters, without empty columns."""
    scores = {
        "ACC": (comparison.acc, comparison.baseline_acc, comparison.chance_acc),
        "neighbour agreement": (comparison.neighbours, comparison.baseline_neighbours, 0.0),
        "linear probe": (comparison.probe, comparison.baseline_probes, None),
    }
    spaces = dict.fromkeys((*comparison.baseline_neighbours, *comparison.baseline_probes))
    table = pd.DataFrame(
        {name: [run, *map(baselines.get, spaces), chance] for name, (run, baselines, chance) in scores.items()},
        ["this run", *(f"K-means on {in_words(space)}" for space in spaces), "the run's clusters in random order"],
        dtype=float,
    )
    shown = table.dropna(axis=1, how="all").map("{:.3f}".format, na_action="ignore").fillna("")
    rows: list[dict[str, str]] = shown.reset_index(names="").to_dict("records")
    return rows
