"""The task and the outcome of a run in two sentences and five numbers, with which its report begins.

The table beside a report's verdict: the run and its null baselines.

The names that pages have for people, with units, in place of the keys of tables and metrics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from shoal.engine.rounds.site_evaluation import BY_SITE
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.status import FINISHED
from shoal.methods.registry import METHODS
from shoal.methods.scores.baselines import Comparison
from shoal.methods.scores.client_scores import BY_CLIENT
from shoal.methods.scores.metrics import DESCRIBED
from shoal.methods.scores.verdict import in_words
from shoal.methods.scores.withheld import AT_LEAST, AT_MOST
from shoal.review.results.clusters import cluster_facts, read_clusters
from shoal.review.results.result import WAYS, RunResult, run_data, run_result

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
    costs = (bytes_sent(result.bytes), Number(duration(result.seconds), "time"))
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


def bytes_sent(moved: Mapping[str, int]) -> Number:
    """Return all bytes that were sent."""
    return Number(size(sum(moved.values())), "sent")


def size(count: float) -> str:
    """Return a number of bytes in the unit that leaves few digits.

    >>> size(14_349_360)
    '14.3 MB'
    """
    units = ("B", "kB", "MB", "GB", "TB")
    power = 0
    while count >= 1000 and power < len(units) - 1:
        count /= 1000
        power += 1
    return f"{count:,.{min(power, 1)}f} {units[power]}"


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
    scores = (comparison.baseline_acc, comparison.baseline_neighbours, comparison.baseline_probes)
    rows = {"this run": [comparison.acc, comparison.neighbours, comparison.probe]}
    for space in dict.fromkeys((*comparison.baseline_neighbours, *comparison.baseline_probes)):
        rows[f"K-means on {in_words(space)}"] = [values.get(space) for values in scores]
    rows["the run's clusters in random order"] = [comparison.chance_acc, 0.0, None]
    columns = ["ACC", "neighbour agreement", "linear probe"]
    table = pd.DataFrame.from_dict(rows, "index", float, columns).dropna(axis="columns", how="all")
    table = table.map("{:.3f}".format, na_action="ignore").fillna("").rename_axis("").reset_index()
    return list(table.to_dict("records"))


NAMES = {
    **IN_WORDS,
    **{f"bytes_{way}": f"sent {words}" for way, words in WAYS.items()},
    "ari": "ARI",
    "features_acc": "ACC of K-means on the features",
    "probe_of_run": "linear probe on the run's features, on a draw of samples",
    "acc_min": "ACC of the worst client",
    "acc_max": "ACC of the best client",
    "group_gain": "gain of K-means over samples without groups",
    "chance_acc": "ACC of random clusters",
    "site_nmi": "NMI of clusters and clients",
    "balance": "balance of cluster sizes",
    "clusters_used": "clusters with samples",
    "smallest_cluster": "share of the smallest cluster",
    "largest_cluster": "share of the largest cluster",
    "samples": "training samples",
    "seconds": "time of training",
    "loss_instance": "loss, instances",
    "loss_cluster": "loss, clusters",
    "loss_prototypes": "loss, prototypes",
    "pool_dropped": "negatives left out",
    "confidence": "mean confidence",
    "samples_withheld": "samples in counts that sites withhold",
}
MEANS = {BY_CLIENT: "mean by client", BY_SITE: "mean by site", AT_LEAST: "at least", AT_MOST: "at most"}
OF_BASELINES = ("neighbour_agreement", "acc")
"""Numbers that null baselines have too: the name of the baseline stands behind `_of_`."""


def name_of(key: str) -> str:
    """Return the name of a number for people.

    >>> name_of("bytes_d2d"), name_of("acc_of_pixels_by_site"), name_of("knn_by_client")
    ('sent between clients', 'ACC of K-means on pixels, mean by site', 'k-NN accuracy, mean by client')
    """
    if key in NAMES:
        return NAMES[key]
    for ending, words in MEANS.items():
        if key.endswith(ending):
            return f"{name_of(key.removesuffix(ending))}, {words}"
    number, _, space = key.partition("_of_")
    if space and number == "probe":
        return f"linear probe on {in_words(space)}"
    if space and number in OF_BASELINES:
        return f"{name_of(number)} of K-means on {in_words(space)}"
    return key.replace("_", " ")


def value_of(key: str, value: object) -> str:
    """Return a value of a table with its unit.

    >>> value_of("bytes_up", 956624.0), value_of("seconds", 0.4), value_of("loss", 4.39353), value_of("samples", 1288)
    ('956.6 kB', '0.4 s', '4.3935', '1,288')
    >>> value_of("acc", 1.0), value_of("acc_of_pixels", 1.0), value_of("knn_by_client", 1.0)
    ('1.0000', '1.0000', '1.0000')
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if not math.isfinite(value):
        return str(value)
    if key.startswith("bytes_"):
        return size(value)
    if key.startswith("seconds"):
        return duration(value)
    number = key.removesuffix(BY_CLIENT).removesuffix(BY_SITE).partition("_of_")[0]
    if value == int(value) and number not in DESCRIBED:
        return f"{int(value):,}"
    return f"{value:.4f}"
