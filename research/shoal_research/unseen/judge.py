"""What each run of the plain default came to: its numbers beside the null baselines, its method and its verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.errors import ShoalError
from shoal.data.sets.prepared import Prepared, open_prepared
from shoal.engine.store.codec import read_sealed
from shoal.engine.store.run_folder import RunFolder
from shoal.review.results.clusters import FACTS
from shoal_research.definition import Study
from shoal_research.table import Group, Table, metric_of
from shoal_research.unseen.nulls import RANDOM, best_null, best_null_mean, nulls_of

CHANCE_FACTOR = 1.5
"""A run whose ACC is below so many times chance must say that its clusters are doubtful or chance."""
WARNINGS = ("doubtful", "chance")
"""Verdicts of a run that warn the user."""
NO_VERDICT = "none"
METHOD_EVENT = "method_chosen"
"""The event of a run that says which method was chosen for it, and why."""


def judge(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Return the null baselines, facts on the set, and what the claims compare, of each run."""
    table: Table = {}
    for group in groups:
        for seed, run in zip(group.seeds, group.runs, strict=True):
            for metric, value in run_facts(run).items():
                table.setdefault(group.place(metric), {})[seed] = value
    return table


def run_facts(run: RunFolder) -> dict[str, float]:
    """Return the numbers of a run that its own metrics do not have.

    `best_null` is the highest null baseline, with a single draw of K-means; `best_null_mean` and `best_null_std` are of
    the baseline with the highest mean over repeats, and `own_null` is the highest that the run shows. `chance` is the
    ACC of random labels, and `told` is 1 where the ACC is at least `CHANCE_FACTOR` times chance or the run's verdict
    warns the user, else 0.

    """
    prepared = open_prepared(run.folder_of("data"))
    clusters = int(run.settings().to_json()["model"]["clusters"])
    nulls = nulls_of(prepared.folder, clusters)
    mean, deviation = best_null_mean(nulls)
    clear = metric_of(run, "acc") >= CHANCE_FACTOR * nulls[RANDOM]
    warned = verdict_of(run)[0] in WARNINGS
    return {
        **nulls,
        "best_null": best_null(nulls),
        "best_null_mean": mean,
        "best_null_std": deviation,
        **own_null(facts_of(run)),
        "chance": nulls[RANDOM],
        "warned": float(warned),
        "told": float(clear or warned),
        **set_facts(prepared),
        "seconds": wall_seconds(run),
    }


def set_facts(prepared: Prepared) -> dict[str, float]:
    """Return the sizes of a set: samples, sites, classes, and the ratio of the largest class to the smallest."""
    sizes = np.bincount(np.asarray(prepared.train_y))
    return {
        "samples": float(len(prepared.train_x)),
        "sites": float(len(prepared.manifest.extra.get("clients", ()))),
        "classes": float(len(sizes)),
        "ratio": float(sizes.max() / max(1, sizes.min())),
    }


def wall_seconds(run: RunFolder) -> float:
    """Return the seconds from a run's first event to its last; of a resumed run, those between the two as well."""
    times = [event.time for event in run.events() if event.time is not None]
    return max(times) - min(times)


def describe(run: RunFolder) -> dict[str, str]:
    """Return words on a run: kind of data, chosen method and reason, verdict and reason."""
    verdict, reason = verdict_of(run)
    return {
        "set": run.settings().data.name,
        "kind": str(open_prepared(run.folder_of("data")).spec.kind),
        "method": run.settings().method.name,
        "method reason": "; ".join(event.message for event in run.events() if event.kind == METHOD_EVENT),
        "verdict": verdict,
        "verdict reason": reason,
    }


def verdict_of(run: RunFolder) -> tuple[str, str]:
    """Return a run's verdict on its own clusters and the reason; `none` where the run has no verdict."""
    return word_and_reason(facts_of(run).get("verdict"))


def facts_of(run: RunFolder) -> Mapping[str, Any]:
    """Return what a run says of its own clusters; nothing where it says nothing."""
    try:
        return read_sealed(run.path / FACTS)
    except ShoalError:
        return {}


def own_null(facts: Mapping[str, Any]) -> dict[str, float]:
    """Return `own_null`, the highest ACC of the null baselines in clusters.json; nothing where it has none.

    >>> own_null({"comparison": {"chance_acc": 0.2, "baseline_acc": {"pixels": 0.4, "frozen": 0.7}}})
    {'own_null': 0.7}
    >>> own_null({})
    {}
    """
    comparison = facts.get("comparison")
    if not comparison:
        return {}
    return {"own_null": max([comparison["chance_acc"], *comparison["baseline_acc"].values()])}


def word_and_reason(verdict: Any) -> tuple[str, str]:
    """Return the word and the reason of a verdict as clusters.json holds it.

    >>> word_and_reason({"word": "doubtful", "reason": "Stability is low."})
    ('doubtful', 'Stability is low.')
    >>> word_and_reason(None)
    ('none', '')
    """
    if isinstance(verdict, str):
        return verdict, ""
    if isinstance(verdict, dict) and "word" in verdict:
        return str(verdict["word"]), str(verdict.get("reason", ""))
    return NO_VERDICT, ""
