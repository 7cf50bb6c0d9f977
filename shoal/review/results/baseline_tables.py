"""The tables beside a report's verdict: null baselines, and clusters by their largest client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.methods.scores.baselines import Comparison
from shoal.methods.scores.sites import SiteDependence
from shoal.methods.scores.verdict import in_words

MAX_ROWS = 50
"""Clusters that the table of sites lists at most."""


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


def site_rows(sites: SiteDependence, names: Mapping[int, str], numbers: Sequence[int]) -> list[dict[str, str]]:
    """Return a row a cluster that has samples: its largest client, that client's share, and the share by chance.

    Args:
        sites: how much clients say about clusters.
        names: of the clients, by number.
        numbers: by which people know the clusters.
    """
    rows = []
    for cluster, share in enumerate(sites.shares):
        if not share:
            continue
        rows.append(
            {
                "cluster": str(numbers[cluster]),
                "largest client": names.get(sites.sites[cluster], str(sites.sites[cluster])),
                "share of the cluster": f"{share:.0%}",
                "by chance up to": f"{sites.shares_by_chance[cluster]:.0%}",
                "": "little but this client" if cluster in sites.site_clusters else "",
            }
        )
    return sorted(rows, key=lambda row: int(row["cluster"]))[:MAX_ROWS]
