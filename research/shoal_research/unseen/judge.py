"""What each run of the plain default came to: its numbers beside the null baselines, and its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shoal.data.sets.prepared import open_prepared
from shoal.engine.store.codec import read_sealed
from shoal.engine.store.run_folder import RunFolder
from shoal.review.results.clusters import FACTS
from shoal_research.definition import Study
from shoal_research.table import Group, Table, metric_of
from shoal_research.unseen.nulls import RANDOM, nulls_of

CHANCE_FACTOR = 1.5
"""A run whose ACC is below so many times chance must say that its clusters are doubtful or chance."""
WARNINGS = ("doubtful", "chance")
"""Verdicts of a run that warn the user."""


def judge(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Return the null baselines of each run, and what the claims compare."""
    table: Table = {}
    for group in groups:
        for seed, run in group.runs.items():
            for metric, value in run_facts(run).items():
                table.setdefault(group.place(metric), {})[seed] = value
    return table


def run_facts(run: RunFolder) -> dict[str, float]:
    """Return the numbers of a run that its own metrics do not have.

    Beside those of `nulls` they are `own_null`, the highest null baseline that the run shows, `chance`, the ACC of
    random labels, and `told`: 1 where the ACC is at least `CHANCE_FACTOR` times chance or the run's verdict warns the
    user, else 0.
    """
    clusters = int(run.settings().to_json()["model"]["clusters"])
    nulls = nulls_of(open_prepared(run.folder_of("data")).folder, clusters)
    comparison = read_sealed(run.path / FACTS)["comparison"]
    clear = metric_of(run, "acc") >= CHANCE_FACTOR * nulls[RANDOM]
    return {
        **nulls,
        "own_null": max(comparison["chance_acc"], *comparison["baseline_acc"].values()),
        "chance": nulls[RANDOM],
        "told": float(clear or word_of(run) in WARNINGS),
    }


def word_of(run: RunFolder) -> str:
    """Return the word of a run's verdict on its own clusters."""
    return str(read_sealed(run.path / FACTS)["verdict"]["word"])
