"""Counts of samples by two things, as tables that a report shades: labels, clusters and clients crossed."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

MAX_CROSSED = 30
"""The largest number of rows, and of columns, of a table."""


@dataclass(frozen=True)
class CrossTable:
    """Counts of samples by rows and columns.

    Attributes:
        counts: integers, whose index and columns have the names of rows and columns, and say what these are.
        left_out: how many further rows and columns are not shown.
    """

    counts: pd.DataFrame
    left_out: tuple[int, int]


def cross_table(counts: pd.DataFrame, row: str, column: str) -> CrossTable | None:
    """Return the largest `MAX_CROSSED` rows and columns of a table of counts, in their order there.

    Args:
        counts: integers, whose index and columns name rows and columns.
        row, column: what these are.

    Returns:
        None where nothing is counted.
    """
    if not counts.size:
        return None
    rows = counts.index.isin(counts.sum(axis=1).nlargest(MAX_CROSSED).index)
    columns = counts.columns.isin(counts.sum(axis=0).nlargest(MAX_CROSSED).index)
    left_out = (int((~rows).sum()), int((~columns).sum()))
    shown = counts.loc[rows, columns].rename_axis(index=row, columns=column)
    return CrossTable(shown, left_out)


def clusters_by_clients(table: pd.DataFrame) -> CrossTable | None:
    """Count samples by cluster and client.

    Args:
        table: the run's cluster table (`shoal.review.results.clusters`).

    Returns:
        None where no sample has a client.
    """
    owned = table.dropna(subset=["client_name"])
    if not len(owned):
        return None
    counts = pd.crosstab(owned["cluster"], owned["client_name"])
    # In the order of the partition, not of the alphabet: client 10 comes after client 9.
    order = owned.drop_duplicates("client_name").sort_values("client")["client_name"]
    return cross_table(counts[list(order)], "cluster", "client")


def confusion(table: pd.DataFrame) -> CrossTable | None:
    """Count samples by label and cluster; the order of clusters puts matched labels on the diagonal.

    Args:
        table: the run's cluster table, of training and test samples.

    Returns:
        None where no sample has a label.
    """
    if "label" not in table or not table["label"].notna().any():
        return None
    from scipy.optimize import linear_sum_assignment  # here: it takes a third of a second to import

    labelled = table.dropna(subset=["label"])
    counts = pd.crosstab(labelled["label"], labelled["cluster"])
    counts = counts.loc[sorted(counts.index, key=by_number)]
    rows, columns = linear_sum_assignment(counts.to_numpy(), maximize=True)
    matched = columns[rows.argsort()].tolist()
    others = sorted({*range(counts.shape[1])} - {*matched})
    return cross_table(counts.iloc[:, [*matched, *others]], "label", "cluster")


def by_number(name: str) -> tuple[int, int, str]:
    """Return a key to sort names by: numbers by their size, before words.

    >>> sorted(["10", "9", "cat"], key=by_number)
    ['9', '10', 'cat']
    """
    if name.isdecimal():
        return (0, int(name), "")
    return (1, 0, name)
