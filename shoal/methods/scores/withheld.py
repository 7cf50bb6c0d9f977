"""Tables of counts without their small cells, and what is still known of the scores: bounds.

A withheld cell is `WITHHELD`. Where all of them together would hold fewer samples than may be told, the smallest other
cell is withheld too: else the number of all samples, which is known, would tell them. So it is with each row whose sum
is known.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.methods.scores.clustering import table_accuracy, table_purity

WITHHELD = -1
AT_LEAST = "_at_least"
AT_MOST = "_at_most"
"""Ends of the names of bounds."""


def withhold(table: np.ndarray, least: int, *, rows_known: bool = False) -> np.ndarray:
    """Return a table of counts, int (r, k), in which every cell of 1 to `least` - 1 samples is withheld.

    Args:
        table: the counts.
        least: samples of a cell that may be told.
        rows_known: whether the sum of each row is known, and not only that of all.

    >>> withhold(np.array([[9, 2, 5], [0, 7, 8]]), 5).tolist()
    [[9, -1, -1], [0, 7, 8]]
    >>> withhold(np.array([[9, 2], [8, 3]]), 5).tolist()
    [[9, -1], [8, -1]]
    """
    shown = np.where((table > 0) & (table < least), WITHHELD, table)
    rows = zip(table, shown, strict=True) if rows_known else ()
    for counts, part in (*rows, (table.ravel(), shown.ravel())):
        hidden = counts[part == WITHHELD].sum()
        visible = np.flatnonzero(part > 0)
        if 0 < hidden < least and len(visible):
            part[visible[np.argmin(part[visible])]] = WITHHELD
    return shown


def bounded_scores(tables: Sequence[np.ndarray], samples: int) -> dict[str, float]:
    """Return bounds of the scores of all samples, as `table_metrics` has them without withheld cells.

    Each withheld sample may agree with the best matching or not. NMI, ARI and balance have no bounds worth a number.

    Args:
        tables: int (c, k + 1), of the sites (`label_table`), some with withheld cells.
        samples: of all of them.
    """
    table = np.sum([np.maximum(table, 0) for table in tables], axis=0)
    hidden = samples - int(table.sum())
    metrics = {f"clusters_used{AT_LEAST}": float(table.any(1).sum()), "samples_withheld": float(hidden)}
    labelled = table[:, :-1]
    known = int(labelled.sum())
    if known:
        for name, score in (("acc", table_accuracy), ("purity", table_purity)):
            agree = score(labelled) * known
            metrics[name + AT_LEAST] = agree / (known + hidden)
            metrics[name + AT_MOST] = (agree + hidden) / (known + hidden)
    return metrics
