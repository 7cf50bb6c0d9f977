"""How well a finished run's clusters agree with labels that came later, of all samples or of some."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from shoal.core.errors import DataError
from shoal.core.streams import Streams
from shoal.data.intake.label_file import labels_by_file
from shoal.data.intake.spelling import some_of
from shoal.data.sets.intake_notes import Intake
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.scores.baselines import Comparison
from shoal.methods.scores.clustering import chance_ari, table_accuracy, table_scores
from shoal.methods.scores.verdict import Verdict, verdict_of
from shoal.review.results.clusters import read_clusters
from shoal.review.results.stable_names import with_stable_numbers

ORDERS = 200
"""Random orders of the clusters with which scores are compared."""


@dataclass(frozen=True)
class LabelScores:
    """Scores of a run's clusters by labels.

    Attributes:
        samples: of the run.
        scores: ACC, NMI, ARI and purity by name, of the samples with a label.
        beside: the number of these, and what their clusters have in random order.
        verdict: by these labels.
        table: labelled samples by cluster (rows) and label (columns).
    """

    samples: int
    scores: dict[str, float]
    beside: Comparison
    verdict: Verdict
    table: pd.DataFrame


def label_scores(run: RunFolder, labels: Path) -> LabelScores:
    """Return the scores of a run's clusters by labels.

    Args:
        run: a finished run with clusters.
        labels: a CSV with the columns file and label; files are named as in the run's `clusters.parquet`, and may be
            a part of them. A file without a label counts as having none.

    Raises:
        DataError: a file that the run does not have, or that has two labels; or fewer than two labels in all.
    """
    clusters = read_clusters(run)
    if clusters is None or "file" not in clusters or clusters["file"].isna().all():
        raise DataError(
            f"{run.path.name} has no clusters, or its set has no files: its report has what its own labels say"
        )
    files = clusters["file"].dropna().tolist()
    label_of = labels_by_file(labels, files, None, Intake())
    if unknown := sorted(set(label_of) - set(files)):
        raise DataError(
            f"{labels} names {len(unknown)} files that the run does not have: {some_of(unknown)}. The column file of "
            "its clusters.parquet has their names"
        )
    label = clusters["file"].map(label_of)
    known = label.notna()
    number = with_stable_numbers(clusters)["cluster"]
    table = pd.crosstab(number[known].rename("cluster"), label[known])
    if table.shape[1] < 2:
        raise DataError(f"{labels} has {table.shape[1]} label(s) of the run's samples; scores need two or more")
    counts = table.to_numpy()
    rng = Streams(0).numpy("labels that came later")
    sizes = counts.sum(0)
    fills = counts.sum(1)
    from scipy.stats import random_table  # here: it takes a third of a second to import

    orders = random_table(fills, sizes).rvs(ORDERS, random_state=rng) if len(fills) > 1 else [counts]
    scores = table_scores(counts)
    beside = Comparison(
        samples=int(known.sum()),
        space="",
        neighbours=0.0,
        baseline_neighbours={},
        acc=scores["acc"],
        ari=scores["ari"],
        chance_acc=float(np.mean([table_accuracy(order) for order in orders])),
        chance_ari=chance_ari(counts, ORDERS, rng),
        largest_class=float(sizes.max() / sizes.sum()),
    )
    return LabelScores(len(clusters), scores, beside, verdict_of(beside), table)
