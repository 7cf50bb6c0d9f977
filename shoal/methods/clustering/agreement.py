"""How far two groupings of the same samples agree, from the numbers of samples that their groups share."""

from __future__ import annotations

import numpy as np


def counts(row: np.ndarray, column: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Return how many of n samples lie in each cell, int64 (rows, columns), from their rows and columns, int (n,).

    Raises:
        ValueError: a sample lies in no cell.
    """
    cell = np.ravel_multi_index((row, column), (rows, columns))
    return np.bincount(cell, minlength=rows * columns).reshape(rows, columns)


def table_ari(table: np.ndarray) -> float:
    """Return the Rand index adjusted for chance (Hubert and Arabie 1985), 0 for random clusters.

    >>> table_ari(np.array([[2, 0], [0, 2]])), table_ari(np.array([[1, 1], [1, 1]]))
    (1.0, -0.5)
    """
    together, in_cluster, in_class, pairs = (
        (part * (part - 1)).sum().item() for part in (table, table.sum(1), table.sum(0), table.sum())
    )
    if together == in_cluster == in_class:
        return 1.0
    # Whole numbers, so that nothing is rounded before the division.
    beyond_chance = 2 * (together * pairs - in_cluster * in_class)
    return float(beyond_chance / (pairs * (in_cluster + in_class) - 2 * in_cluster * in_class))
