"""The score of a finished run: one number, which compares its trial with the others."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path

import numpy as np

from shoal.core.streams import Streams
from shoal.data.partition.table import load_partition
from shoal.data.sets.prepared import open_prepared
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.scores.neighbours import nearest_samples, neighbour_information, reference_features
from shoal.review.results.clusters import cluster_facts, read_clusters
from shoal.sweeps.search.definition import CLUSTER_SCORES, NEIGHBOURS, SCORES, SearchError
from shoal.sweeps.sweep import RunFailed

MAX_SAMPLES = 5_000
"""Samples, a seeded draw, that `neighbours` compares: its cost grows with their square."""


def score_of(run: RunFolder, name: str) -> float:
    """Return the score of a finished run after its last round.

    Args:
        run: the run's folder.
        name: of the score (`shoal.sweeps.search.definition.SCORES`).

    Raises:
        RunFailed: the score is not defined after the last round.
        SearchError: runs of this method have no such score. StoreError: a file of the run is damaged.
    """
    if name in CLUSTER_SCORES:
        value = cluster_score(run, name)
    else:
        rounds = run.table("rounds")
        if name not in rounds:
            usable = ", ".join(sorted({*rounds.columns} & {*SCORES})) or "another one, which it has"
            raise SearchError(f"run {run.name} has no score {name!r}: set score to one of {usable}")
        value = float(rounds[name].iloc[-1])
    if value is None or not math.isfinite(value):
        raise RunFailed(f"the score {name!r} is not defined after round {run.status().round}, the last one")
    return value


def cluster_score(run: RunFolder, name: str) -> float | None:
    """Return a score of the cluster table of a run; None where it is not defined; errors as of `score_of`."""
    facts = cluster_facts(run)
    table = read_clusters(run, ["cluster"])
    if facts is None or table is None:
        reason = next((event.message for event in run.events() if event.kind == "clusters_skipped"), "no clusters")
        raise SearchError(f"the score {name!r} of run {run.name} cannot be computed: {reason}")
    if name != NEIGHBOURS:
        return facts.quality.get(name)
    try:
        rows, neighbours = neighbours_of(run.folder_of("data"), run.folder_of("partition"))
    except ValueError as error:
        raise SearchError(f"the score {name!r} cannot be computed: {error}; set another score") from None
    return neighbour_information(table["cluster"].to_numpy()[rows], neighbours, facts.clusters)


@lru_cache(1)
def neighbours_of(data: Path, partition: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers int64 (n,) of the compared samples, and the neighbours int64 (n, k) of each among them.

    Samples are numbered as in the table of clusters: training samples that some client holds, in the order of the
    set, then all test samples. They are compared as the set has them, without a planted transformation.

    Args:
        data, partition: folders of a data set and of a partition of it.

    Raises:
        ValueError: samples of this kind have no neighbours.
    """
    samples = np.sort(load_partition(partition).sample)
    prepared = open_prepared(data)
    count = len(samples) + prepared.spec.test
    rows = np.arange(count)
    if count > MAX_SAMPLES:
        drawn = Streams(0).numpy("samples that a search judges clusterings on")
        rows = np.sort(drawn.choice(count, MAX_SAMPLES, replace=False))
    parts = [np.asarray(prepared.train_x[samples[rows[rows < len(samples)]]])]
    if prepared.test_x is not None:
        parts.append(np.asarray(prepared.test_x[rows[rows >= len(samples)] - len(samples)]))
    return rows, nearest_samples(reference_features(np.concatenate(parts)))
