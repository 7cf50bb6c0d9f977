"""The table beside a report's verdict: the run and its null baselines."""

from __future__ import annotations

from shoal.methods.scores.baselines import Comparison
from shoal.methods.scores.verdict import in_words


def baseline_rows(comparison: Comparison) -> list[dict[str, str]]:
    """Return a row for the run, one for each null baseline, and one for random clusters, without empty columns."""
    rows = [_row("this run", comparison.acc, comparison.neighbours, comparison.probe)]
    spaces = dict.fromkeys((*comparison.baseline_neighbours, *comparison.baseline_probes))
    for space in spaces:
        scores = (comparison.baseline_acc, comparison.baseline_neighbours, comparison.baseline_probes)
        acc, neighbours, probe = (values.get(space) for values in scores)
        rows.append(_row(f"K-means on {in_words(space)}", acc, neighbours, probe))
    rows.append(_row("the run's clusters in random order", comparison.chance_acc, 0.0, None))
    kept = [column for column in rows[0] if any(row[column] for row in rows)]
    return [{column: row[column] for column in kept} for row in rows]


def _row(name: str, acc: float | None, neighbours: float | None, probe: float | None) -> dict[str, str]:
    numbers = {"ACC": acc, "neighbour agreement": neighbours, "linear probe": probe}
    return {"": name, **{column: "" if value is None else f"{value:.3f}" for column, value in numbers.items()}}
