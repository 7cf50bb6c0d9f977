"""The beginning of a run's report: its task and its outcome in two sentences, and at most five numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shoal.engine.store.run_folder import FINISHED, RunFolder
from shoal.methods.registry import METHODS
from shoal.methods.scores.metrics import DESCRIBED
from shoal.review.results.clusters import cluster_facts, read_clusters
from shoal.review.results.result import RunResult, run_result
from shoal.review.results.run_data import run_data

SCORES = ("acc", "nmi", "perplexity", "knn", "probe", "silhouette", "stability", "loss")
"""The scores that a summary may name, the most telling first: scores that use labels before those that do not."""
MAX_SCORES = 2
"""Scores that a summary names."""
IN_WORDS = {"acc": "ACC", "nmi": "NMI", "knn": "k-NN accuracy", "probe": "linear probe"}
"""The usual names of scores; the other scores have their own names."""


@dataclass(frozen=True)
class Number:
    """One number of a summary.

    Attributes:
        value: the text to show, with its unit.
        name: a word or two.
        about: what a reader must know to judge it; may be empty.
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
    """Return the summary of a run, finished or not, without what the run does not have.

    Args:
        run: the run's folder.
    """
    result = run_result(run)
    clusters = clusters_found(run, result)
    scores = scores_of(result)
    numbers = (*clusters, *scores, bytes_moved(result.bytes), Number(duration(result.seconds), "time", "of all rounds"))
    return Summary(task_sentence(run), outcome_sentence(run, result, (*clusters, *scores)), numbers)


def task_sentence(run: RunFolder) -> str:
    """Return the task in one sentence, without the number of samples where the data are elsewhere."""
    settings = run.settings()
    method = METHODS[settings.method.name]
    samples_text = ""
    if (data := run_data(run)) is not None:
        prepared, partition = data
        samples = counted(len(partition.sample), f"{prepared.manifest.kind} sample")
        verb = "pooled from" if method.pooled else "held by"
        scheme = settings.partition.kind.replace("_", " ")
        clients = counted(partition.clients, "client")
        samples_text = f": {samples} {verb} {clients} ({scheme} partition)"
    labels = "with" if method.learns_from_labels else "without"
    rounds = counted(settings.rounds, "round")
    return f"{settings.method.name} learns from {settings.data.name} {labels} labels, in {rounds}{samples_text}."


def outcome_sentence(run: RunFolder, result: RunResult, numbers: tuple[Number, ...]) -> str:
    """Return the outcome in one sentence."""
    if result.status == FINISHED:
        state = f"It finished after {counted(result.rounds, 'round')}"
    else:
        state = f"It is {result.status} after {result.rounds} of {counted(run.settings().rounds, 'round')}"
    parts = []
    for number in numbers:
        if number.name.startswith("cluster"):
            parts.append(f"{number.value} {number.name} {number.about}".strip())
        else:
            parts.append(f"{number.name} {number.value}")
    if not parts:
        return f"{state}."
    return f"{state}: {', '.join(parts)}."


def clusters_found(run: RunFolder, result: RunResult) -> tuple[Number, ...]:
    """Return the number of non-empty clusters and their sizes, or the method's own count; nothing without clusters."""
    facts = cluster_facts(run)
    table = read_clusters(run, ["cluster"])
    if facts is not None and table is not None:
        sizes = table["cluster"].value_counts()
        empty = facts["clusters"] - len(sizes)
        smallest = int(sizes.min())
        largest = int(sizes.max())
        about = f"of {counted(largest, 'sample')} each"
        if smallest < largest:
            about = f"of {smallest:,} to {largest:,} samples"
        if empty:
            about += f"; {empty} of {facts['clusters']} are empty"
        return (Number(f"{len(sizes)}", plural(len(sizes), "cluster"), about),)
    for name, rest in (("clusters_used", ""), ("clusters", " of clients")):
        if name in result.metrics:
            count = round(result.metrics[name])
            return (Number(f"{count}", f"{plural(count, 'cluster')}{rest}"),)
    return ()


def scores_of(result: RunResult) -> tuple[Number, ...]:
    """Return the most telling scores that the run has."""
    values = {**result.metrics, **result.quality}
    names = [name for name in SCORES if name in values][:MAX_SCORES]
    return tuple(Number(f"{values[name]:.3f}", IN_WORDS.get(name, name), DESCRIBED[name].words) for name in names)


def bytes_moved(moved: Mapping[str, int]) -> Number:
    """Return all bytes that were sent, and the share of each direction."""
    directions = {"up": "up", "down": "down", "d2d": "between clients"}
    parts = [f"{size(moved[key])} {words}" for key, words in directions.items() if moved.get(key)]
    return Number(size(sum(moved.values())), "sent", ", ".join(parts))


def size(count: float) -> str:
    """Return bytes in the unit that leaves few digits.

    >>> size(14_349_360)
    '14.3 MB'
    """
    units = ("B", "kB", "MB", "GB", "TB")
    power = 0
    while count >= 1000 and power < len(units) - 1:
        count /= 1000
        power += 1
    digits = min(power, 1)
    return f"{count:,.{digits}f} {units[power]}"


def duration(seconds: float) -> str:
    """Return a time in minutes; below one minute in seconds, from two hours on in hours.

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
    """Return the noun in the form that follows a number."""
    return noun if count == 1 else f"{noun}s"
