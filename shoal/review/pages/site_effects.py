"""What a report says of sites that differ: of clusters that follow them, and of two that may be one kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from shoal.data.sets.remedy import EMBEDDED
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.scores.verdict import site_sentence
from shoal.review.results.clusters import ClusterFacts
from shoal.review.results.result import run_data, run_result

MAX_COLUMNS = 5
"""Columns by which clusters are shown to differ."""


def about_sites(run: RunFolder, table: pd.DataFrame, facts: ClusterFacts) -> str | None:
    """Return a sentence about clusters and clients, where the run has several.

    Args:
        run: the run's folder.
        table: its cluster table.
        facts: about its clusters.
    """
    if facts.sites is None:
        return None
    owned = table.dropna(subset=["client"]).drop_duplicates("client")
    names = dict(zip(owned["client"].astype(int), owned["client_name"], strict=True))
    sentence = site_sentence(facts.sites, names, facts.numbers, facts.comparison.twins if facts.comparison else ())
    if run_result(run).metrics.get("site_offsets"):
        return f"Sites differ by offsets, which were estimated and taken away. {sentence}"
    return sentence


def twin_columns(run: RunFolder, table: pd.DataFrame, twins: Sequence[tuple[int, ...]]) -> dict[Any, pd.DataFrame]:
    """Return for clusters that may be one kind the means of the columns in which they differ most; of vectors alone.

    Args:
        run: the run's folder.
        table: its cluster table; clusters have the numbers by which people know them.
        twins: pairs of such clusters.
    """
    data = run_data(run)
    if data is None or data[0].spec.kind != "vector":
        return {}
    extra = data[0].manifest.extra
    if "features" not in extra or EMBEDDED in extra:
        return {}
    rows = table[table["part"] == "train"]
    x = pd.DataFrame(data[0].train_x[rows["sample"].to_numpy()], columns=extra["features"])
    means = x.groupby(rows["cluster"].to_numpy()).mean().T
    shown = {}
    for pair in twins:
        two = means[list(pair)]
        apart = two.diff(axis=1).iloc[:, 1].abs() / x.std()
        shown[pair] = two.loc[apart.nlargest(MAX_COLUMNS).index]
    return shown
