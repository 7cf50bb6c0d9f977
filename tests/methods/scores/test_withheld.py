"""Small cells of tables are withheld so that sums do not tell them, and bounds hold the scores of all samples."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.methods.scores.clustering import table_accuracy, table_purity
from shoal.methods.scores.withheld import WITHHELD, bounded_scores, withhold


def tables(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [np.column_stack([rng.poisson(4, (5, 5)) + 15 * np.eye(5, dtype=int), rng.poisson(1, 5)]) for _ in range(3)]


@pytest.mark.parametrize("rows_known", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_no_small_cell_and_no_small_sum_of_cells_is_told(seed: int, rows_known: bool) -> None:
    for table in tables(seed):
        shown = withhold(table, 5, rows_known=rows_known)
        told = shown != WITHHELD
        assert (shown[told] == table[told]).all()
        assert not ((shown > 0) & (shown < 5)).any()
        rows = zip(table, told, strict=True) if rows_known else ()
        for counts, part in [*rows, (table, told)]:
            hidden = counts[~part].sum()
            assert hidden == 0 or hidden >= 5 or not (counts[part] > 0).any()


@pytest.mark.parametrize("seed", range(20))
def test_bounds_hold_the_scores(seed: int) -> None:
    whole = tables(seed)
    total = np.sum(whole, axis=0)
    bounds = bounded_scores([withhold(table, 5) for table in whole], int(total.sum()))
    for name, score in (("acc", table_accuracy), ("purity", table_purity)):
        assert bounds[f"{name}_at_least"] <= score(total[:, :-1]) <= bounds[f"{name}_at_most"]
    assert bounds["samples_withheld"] == sum(table[withhold(table, 5) == WITHHELD].sum() for table in whole)


def test_a_last_cell_is_not_told_by_the_number_of_all_samples() -> None:
    assert withhold(np.array([[9, 0], [3, 0]]), 5).tolist() == [[WITHHELD, 0], [WITHHELD, 0]]
    assert withhold(np.array([[9, 8], [6, 3]]), 5).tolist() == [[9, 8], [WITHHELD, WITHHELD]]
    few = np.array([[30, 2], [40, 3]])
    assert withhold(few, 5).tolist() == [[30, WITHHELD], [40, WITHHELD]]
    assert (withhold(few, 5, rows_known=True) == WITHHELD).all()
